"""A drive: attempts of the replicas that live and die together, one after the other, under one restart budget.

Of ``independent`` replicas each has drives of its own; a gang has one for all its replicas.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from airflow_tf.core.devices import Member
from airflow_tf.core.errors import AirflowTfError, SupervisorLostError, to_payload
from airflow_tf.core.identity import View, digest, make_token
from airflow_tf.core.launch import Plan, ReplicaLaunch
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.policy import may_restart
from airflow_tf.core.states import CLEARED_REASON, AttemptState, ExitCause
from airflow_tf.core.verdict import Ended, Step, Verdict, evaluator_of, lacks_culprit, may_rejoin, next_step, settle
from airflow_tf.supervisor import results
from airflow_tf.supervisor.attempt import Alarm, Attempt, ReplicaRun, StopOrder, resume_point
from airflow_tf.supervisor.carrier import Carrier
from airflow_tf.supervisor.host import Host
from airflow_tf.supervisor.placement import write_placement
from airflow_tf.supervisor.protocol import Attach
from airflow_tf.supervisor.rendezvous import Rendezvous
from airflow_tf.supervisor.seat import Seat

log = logging.getLogger(__name__)

CULPRIT_SECONDS = 10.0
"""How long the members of a gang may take to end after the first of them has lost its peers."""

EVALUATOR_SECONDS = 600.0
"""How long an evaluator may take for the last checkpoint when the training has ended."""

REST_GRACE_SECONDS = 5.0
"""Longest time between SIGTERM and SIGKILL for what is left of a gang that has failed or whose work is done."""


class Drive:
    """Run attempts until one succeeds, the budget is used up, or somebody stops it.

    ``verdict`` is what the drive came to, None before its end and where it could not run at all.
    """

    def __init__(self, host: Host, seats: Mapping[int, Seat], request: Attach, gang_folder: Path) -> None:
        self.seats = dict(seats)
        self.generation = request.generation
        self.verdict: results.GangVerdict | None = None
        self._host = host
        self._newest_try = request.view.try_number
        self._plan: Plan = request.plan
        self._launches: dict[int, ReplicaLaunch] = {launch.replica: launch for launch in request.launches}
        self._members: dict[int, Member] = {member.replica: member for member in request.members}
        self._gang_folder = gang_folder
        self._watchdogs = list(host.watchdogs(self._plan, self._members))
        if any(launch.upload is not None for launch in request.launches):
            self._watchdogs.append(Carrier(gang_folder / "carrier.log").watch)
        self._stop: StopOrder | None = None
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._gives_way = False
        self._restarts_used = 0
        self._meeting: Rendezvous | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        """Tell whether the drive has ended."""
        return self._task is not None and self._task.done()

    def begin(self, on_end: Callable[[], None]) -> None:
        """Start driving."""
        for seat in self.seats.values():
            seat.drive, seat.generation, seat.outcome, seat.run = self, self.generation, None, None
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: on_end())

    def seen_by(self, view: View) -> None:
        """Note that a view looks at it."""
        self._newest_try = max(self._newest_try, view.try_number)

    async def give_way(self, order: StopOrder) -> None:
        """End for a drive of a new generation; the views of replicas that go on in it are told nothing of this end."""
        self._gives_way = True
        self.stop(order)
        if self._task is not None:
            await asyncio.wait({self._task})

    def stop(self, order: StopOrder) -> None:
        """Ask the running attempt to end: SIGTERM, grace, SIGKILL.

        The first order counts; only that a user marked its task, which is found out a little later, says more. Where
        the task of one member was cleared, the views of the others are to go on with the new generation.
        """
        self._gives_way = self._gives_way or (self._plan.is_gang and order.reason == CLEARED_REASON)
        known = None if self._stop is None else self._stop.cause
        if order.at_once:
            self._hurry.set()
        if known is None or (known is ExitCause.STOPPED and order.cause is ExitCause.MARKED):
            log.info("%s: stop asked: %s", self._label, order.reason)
            self._stop = order
            self._stopping.set()

    def stop_if_orphaned(self) -> None:
        """Stop where no view has looked at any of the replicas for the time that the views allowed."""
        seats = self.seats.values()
        grace = max(seat.orphan_grace_seconds for seat in seats)
        if any(seat.watchers for seat in seats) or time.monotonic() - max(seat.seen_at for seat in seats) < grace:
            return
        self.stop(StopOrder(f"no task looked after it for {grace:.0f} s"))

    @property
    def _label(self) -> str:
        return f"replica {min(self.seats)}" if len(self.seats) == 1 else "the gang"

    def notify(self, message: dict[str, Any]) -> None:
        """Tell all views of all seats."""
        for seat in self.seats.values():
            seat.notify(message)

    def note(self, text: str) -> None:
        """Tell all views a line."""
        self.notify({"type": "note", "text": text})

    async def _run(self) -> None:
        """Drive; tell the views how it ended.

        A failure of our own is told first and cleaned up after: what caused it, a full disk for instance, may keep
        the ledger away as well, and no view must wait for that.
        """
        try:
            await self._host.confirm(list(self._members.values()))
        except AirflowTfError as error:
            self.notify({"type": "refused", "error": to_payload(error)})
            return
        try:
            await self._attempts()
        except Exception as error:  # whatever it is, a view must not wait for ever
            log.exception("%s", self._label)
            lost = SupervisorLostError(
                f"{self._label} could not be run",
                f"{type(error).__name__}: {error}",
                f"Look at the disk of {self._gang_folder} and at the supervisor's log in it.",
            )
            self.notify({"type": "refused", "error": to_payload(lost)})
            await self._give_up(Outcome(AttemptState.LOST, ExitCause.INFRASTRUCTURE, str(lost)))
        else:
            await self._free()
            for seat in self.seats.values():
                if self._gives_way:
                    seat.tell_waiting()
                elif seat.outcome is not None:
                    seat.notify({"type": "result", "outcome": seat.outcome.to_json()})

    async def _give_up(self, outcome: Outcome) -> None:
        """End what runs, record the outcome of what has none yet, and only then give the devices back.

        Should this supervisor die in between, whoever takes the devices back records the rest.
        """
        runs = [seat.run for seat in self.seats.values() if seat.run is not None]
        self._hurry.set()
        await asyncio.gather(*(run.end(0, self._hurry) for run in runs))
        try:
            for run in runs:
                await self._host.record_end(run.launch, outcome)
        finally:
            await self._free()

    async def _free(self) -> None:
        for number, member in self._members.items():
            run, outcome = self.seats[number].run, self.seats[number].outcome
            if outcome is not None and outcome.state is AttemptState.FAILED and outcome.cause.needs_other_device:
                uuids = [device.uuid for device in member.devices]
                await self._host.bar(member, uuids, outcome.message.partition("\n")[0])
            await self._host.free(member, run if run is not None and run.keeps_device else None)

    async def _attempts(self) -> None:
        """Run attempts within the budget."""
        await asyncio.to_thread(results.remove_verdict, self._gang_folder)
        while True:
            verdict, is_stuck = await self._attempt()
            if is_stuck or self._stop or not self._may_restart(verdict.root):
                if self._gives_way:
                    return
                self.verdict = results.GangVerdict(self.generation, self._newest_try, verdict.root)
                if self._plan.is_gang:
                    await asyncio.to_thread(results.write_verdict, self._gang_folder, self.verdict)
                return
            self._restarts_used += 1
            self.notify(self._restarting(verdict.root))

    def _may_restart(self, outcome: Outcome) -> bool:
        return may_restart(outcome, restarts_used=self._restarts_used, restarts=self._plan.restarts)

    def _restarting(self, outcome: Outcome) -> dict[str, Any]:
        return {"type": "restarting", "outcome": outcome.to_json(), "restart": self._restarts_used}

    async def _attempt(self) -> tuple[Verdict, bool]:
        """Run one attempt to its durable end; tell whether it left what keeps a device."""
        runs = await self._prepare()
        try:
            await self._start(runs)
            ended, alarm = await self._watch(runs)
        finally:
            if self._meeting is not None:
                self._meeting.release()
        await self._end(runs, alarm)
        verdict = await asyncio.to_thread(self._settle, runs, ended, alarm)
        for number, run in runs.items():
            await self._write(run, verdict.outcomes[number])
        for number, run in runs.items():
            await self._record(run, verdict.outcomes[number])
            self.seats[number].outcome = verdict.outcomes[number]
        return verdict, any(run.keeps_device for run in runs.values())

    async def _write(self, run: ReplicaRun, outcome: Outcome) -> None:
        """Write a replica's result durably, before anybody is told."""
        await asyncio.to_thread(write_placement, run.launch)
        await asyncio.to_thread(results.write_outcome, run.folder, outcome)

    async def _record(self, run: ReplicaRun, outcome: Outcome) -> None:
        launch = run.launch
        await self._host.record_end(launch, outcome)
        log.info("replica %s attempt %s: %s %s", launch.replica, launch.attempt, outcome.state, outcome.message)

    async def _prepare(self) -> dict[int, ReplicaRun]:
        """Record a new attempt of every replica, and make its folders."""
        return {number: await self._open(number) for number in self.seats}

    async def _open(self, number: int) -> ReplicaRun:
        """Record a new attempt of one replica, and make its folders."""
        seat, member = self.seats[number], self._members[number]
        seat.tokens += 1
        token = make_token(self._host.installation, member.fence, number, seat.tokens)
        attempt = await self._host.record_start(seat, member, token)
        launch = self._complete(self._launches[number], member, attempt, token)
        seat.run = run = ReplicaRun(launch, partial(self._host.testify, member=member))
        _make_folders(launch)  # may fail, and then its attempt has to be ended
        return run

    def _complete(self, launch: ReplicaLaunch, member: Member, attempt: int, token: str) -> ReplicaLaunch:
        """Fill in what only the supervisor knows."""
        number = launch.replica
        home = results.replica_folder(self._gang_folder, number, self.generation)
        folder = home / f"attempt-{attempt}"
        checkpoints = (folder if launch.fresh else home) / "checkpoints"
        memories = [device.memory_bytes for device in member.devices]
        known = [memory for memory in memories if memory is not None]
        return launch.for_attempt(
            generation=self.generation,
            attempt=attempt,
            token=token,
            folder=str(folder),
            checkpoint_folder=str(checkpoints),
            visible_devices=",".join(device.visible for device in member.devices) or "-1",
            memory_bytes=min(known) if known and len(known) == len(memories) else None,
            seed=int(digest(self._gang_folder, number, self.generation), 16),
        )

    async def _start(self, runs: Mapping[int, ReplicaRun]) -> None:
        """Start every replica from the last complete checkpoint, which is the first replica's."""
        try:
            resume_from = await asyncio.to_thread(resume_point, runs[min(runs)].launch)
            meeting = Rendezvous(self._plan, list(runs)) if self._plan.is_gang else None
        except AirflowTfError as error:
            for run in runs.values():
                run.failure = error
            return
        self._meeting = meeting
        for number, run in runs.items():
            variables = meeting.variables(number) if meeting is not None else {}
            environment = run.launch.environment | variables
            watched = runs[min(runs)].launch.checkpoint_folder if number == evaluator_of(self._plan) else ""
            run.launch = run.launch.for_attempt(
                resume_from=resume_from, environment=environment, watched_folder=watched
            )
        await asyncio.gather(*(self._start_one(run) for run in runs.values()))

    async def _start_one(self, run: ReplicaRun) -> None:
        await run.start(self._host, self._stopping, self._plan.start_timeout_seconds)
        if run.process is not None:
            self.seats[run.launch.replica].notify(run.attempt_message())

    async def _watch(self, runs: dict[int, ReplicaRun]) -> tuple[dict[int, Outcome], Alarm | None]:
        """Wait until the attempt must end: by what its replicas came to, by a stop, or by a watchdog's alarm.

        Return how the replicas ended that ended by themselves.
        """
        attempt, ended = Attempt(runs, self.note), dict[int, Outcome]()
        watchdogs = [*self._watchdogs, *([self._meeting.watch] if self._meeting is not None else [])]
        alarms = [asyncio.ensure_future(watchdog(attempt)) for watchdog in watchdogs]
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while True:
                if await self._note_ends(runs, ended):
                    continue
                alarm = next((alarm.result() for alarm in alarms if alarm.done()), None)
                patience = self._patience_seconds(ended)
                if self._stopping.is_set() or alarm is not None or patience == 0:
                    return ended, alarm
                for number in ended:
                    self.seats[number].tell_waiting()
                pending = {run.process.status for number, run in runs.items() if run.process and number not in ended}
                waited: set[asyncio.Future[Any]] = {*pending, *alarms, stopping}
                news, _ = await asyncio.wait(waited, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not news:
                    return ended, None
        finally:
            for waiting in (*alarms, stopping):
                waiting.cancel()

    async def _note_ends(self, runs: dict[int, ReplicaRun], ended: dict[int, Outcome]) -> bool:
        """Judge what has ended by itself; tell whether something was started again, and is to be looked at anew."""
        has_rejoined = False
        for number, run in list(runs.items()):
            if run.has_ended and run.has_begun and number not in ended:
                outcome = await asyncio.to_thread(self._judge, run, None)
                if await self._rejoin(runs, ended, number, outcome):
                    has_rejoined = True
                else:
                    ended[number] = outcome
        return has_rejoined

    async def _rejoin(
        self, runs: dict[int, ReplicaRun], ended: Mapping[int, Outcome], number: int, outcome: Outcome
    ) -> bool:
        """Start a replica again that failed alone, in the cluster of this attempt, if that takes it back."""
        goes_on = not self._stopping.is_set() and next_step(self._plan, ended) is Step.GO_ON
        if not (goes_on and may_rejoin(self._plan, number, outcome) and self._may_restart(outcome)):
            return False
        lost = runs[number]
        await self._end({number: lost}, None)
        if lost.keeps_device:
            return False
        await self._write(lost, outcome)
        await self._record(lost, outcome)
        self._restarts_used += 1
        self.seats[number].notify(self._restarting(outcome))
        run = runs[number] = await self._open(number)
        known = {name: getattr(lost.launch, name) for name in ("resume_from", "environment", "watched_folder")}
        run.launch = run.launch.for_attempt(**known)
        if self._meeting is not None:
            self._meeting.expect_again(number)
        await self._start_one(run)
        return True

    def _patience_seconds(self, ended: Mapping[int, Outcome]) -> float | None:
        """Return how long to wait for what ends next: for ever, for the culprit of a failure, or not at all."""
        step = next_step(self._plan, ended)
        if step is Step.GO_ON:
            return None
        evaluator = evaluator_of(self._plan)
        if step is Step.DONE and evaluator is not None and evaluator not in ended:
            run = self.seats[evaluator].run
            if run is not None and run.process is not None:
                run.training_ended()
                return EVALUATOR_SECONDS
        return CULPRIT_SECONDS if step is Step.FAILED and lacks_culprit(self._plan, ended) else 0

    async def _end(self, runs: Mapping[int, ReplicaRun], alarm: Alarm | None) -> None:
        """End what still runs. After a failure in its gang a replica has little worth saving, but may be saving it."""
        has_time = self._stopping.is_set() or alarm is not None or not self._plan.is_gang
        for_rest = float("inf") if has_time else REST_GRACE_SECONDS
        await asyncio.gather(
            *(run.end(min(run.launch.kill_grace_seconds, for_rest), self._hurry) for run in runs.values())
        )
        for number, run in runs.items():
            if run.process is not None:
                run.leftover = await asyncio.to_thread(self._host.memory_left, self._members[number])

    def _judge(self, run: ReplicaRun, stop: StopOrder | None) -> Outcome:
        outcome = run.judge(stop)
        return outcome if self._meeting is None else self._meeting.explain(run, outcome)

    def _settle(self, runs: Mapping[int, ReplicaRun], ended: Mapping[int, Outcome], alarm: Alarm | None) -> Verdict:
        """Judge what was ended, then all of them together."""
        by_number: dict[int, Ended] = {}
        for number, run in runs.items():
            by_us = number not in ended or bool(run.survivors)
            outcome = run.with_leftover(run.judge(self._stop) if by_us else ended[number])
            by_number[number] = Ended(outcome, run.died_at, by_us=by_us)
        order = self._stop
        return settle(
            self._plan,
            by_number,
            stop=None if order is None else Outcome(AttemptState.STOPPED, order.cause, order.reason),
            alarm=None if alarm is None else (alarm.replica, Outcome(AttemptState.FAILED, alarm.cause, alarm.message)),
        )


def _make_folders(launch: ReplicaLaunch) -> None:
    Path(launch.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    Path(launch.checkpoint_folder).mkdir(mode=0o700, exist_ok=True)
