"""The course of one attempt: replicas are started together, watched, ended, and judged together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from airflow_tf.core.errors import AirflowTfError
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import AttemptState
from airflow_tf.core.verdict import Ended, Step, Verdict, evaluator_of, lacks_culprit, may_rejoin, next_step, settle
from airflow_tf.supervisor.attempt import Alarm, Attempt, ReplicaRun, StopOrder, resume_point
from airflow_tf.supervisor.carrier import Carrier
from airflow_tf.supervisor.rendezvous import Rendezvous
from airflow_tf.supervisor.team import Team

CULPRIT_SECONDS = 10.0
"""How long the members of a gang may take to end after the first of them has lost its peers."""

EVALUATOR_SECONDS = 600.0
"""How long an evaluator may take for the last checkpoint when the training has ended."""

REST_GRACE_SECONDS = 5.0
"""Longest time between SIGTERM and SIGKILL for what is left of a gang that has failed or whose work is done."""


class Course:
    """One attempt of a team's replicas."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._plan = team.plan
        self._runs: dict[int, ReplicaRun] = {}
        self._ended: dict[int, Outcome] = {}
        self._meeting: Rendezvous | None = None

    async def run(self) -> tuple[Verdict, bool]:
        """Run the attempt to its durable end; tell whether it left what keeps a device."""
        team = self._team
        for number in team.seats:
            self._runs[number] = await team.open(number)
        with Carrier(team.folder / "carrier.log", team.note) as carrier:
            try:
                await self._start()
                carrier.begin(run.launch for run in self._runs.values() if run.process is not None)
                alarm = await self._watch()
            finally:
                if self._meeting is not None:
                    self._meeting.release()
            await self._end(self._runs, alarm)
            verdict = await asyncio.to_thread(self._settle, alarm)
            carrier.end(needs_copy=verdict.root.state is not AttemptState.SUCCEEDED)
        for number, run in self._runs.items():
            await team.write(run, verdict.outcomes[number])
        for number, run in self._runs.items():
            await team.record(run, verdict.outcomes[number])
            team.seats[number].outcome = verdict.outcomes[number]
        return verdict, any(run.keeps_device for run in self._runs.values())

    async def _start(self) -> None:
        """Start every replica from the last complete checkpoint, which is the first replica's."""
        runs = self._runs
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
        await asyncio.gather(*(self._team.start(run) for run in runs.values()))

    async def _watch(self) -> Alarm | None:
        """Wait until the attempt must end: by what its replicas came to, by a stop, or by a watchdog's alarm.

        How the replicas ended that ended by themselves is noted.
        """
        team, runs, ended = self._team, self._runs, self._ended
        attempt = Attempt(runs, team.note)
        watchdogs = [*team.watchdogs(), *([self._meeting.watch] if self._meeting is not None else [])]
        alarms = [asyncio.ensure_future(watchdog(attempt)) for watchdog in watchdogs]
        stopping = asyncio.ensure_future(team.stopping.wait())
        try:
            while True:
                if await self._note_ends():
                    continue
                alarm = next((alarm.result() for alarm in alarms if alarm.done()), None)
                patience = self._patience_seconds()
                if team.stopping.is_set() or alarm is not None or patience == 0:
                    return alarm
                for number in ended:
                    team.seats[number].tell_waiting()
                pending = {run.process.status for number, run in runs.items() if run.process and number not in ended}
                waited: set[asyncio.Future[Any]] = {*pending, *alarms, stopping}
                news, _ = await asyncio.wait(waited, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not news:
                    return None
        finally:
            for waiting in (*alarms, stopping):
                waiting.cancel()

    async def _note_ends(self) -> bool:
        """Judge what has ended by itself; tell whether something was started again, and is to be looked at anew."""
        has_rejoined = False
        for number, run in list(self._runs.items()):
            if run.has_ended and run.has_begun and number not in self._ended:
                outcome = await asyncio.to_thread(self._judge, run, None)
                if await self._rejoin(number, outcome):
                    has_rejoined = True
                else:
                    self._ended[number] = outcome
        return has_rejoined

    async def _rejoin(self, number: int, outcome: Outcome) -> bool:
        """Start a replica again that failed alone, in the cluster of this attempt, if that takes it back."""
        team = self._team
        goes_on = not team.stopping.is_set() and next_step(self._plan, self._ended) is Step.GO_ON
        if not (goes_on and may_rejoin(self._plan, number, outcome) and team.may_restart(outcome)):
            return False
        lost = self._runs[number]
        await self._end({number: lost}, None)
        if lost.keeps_device:
            return False
        await team.write(lost, outcome)
        await team.record(lost, outcome)
        team.restarts_used += 1
        team.seats[number].notify(team.restarting(outcome))
        run = self._runs[number] = await team.open(number)
        known = {name: getattr(lost.launch, name) for name in ("resume_from", "environment", "watched_folder")}
        run.launch = run.launch.for_attempt(**known)
        if self._meeting is not None:
            self._meeting.expect_again(number)
        await team.start(run)
        return True

    def _patience_seconds(self) -> float | None:
        """Return how long to wait for what ends next: for ever, for the culprit of a failure, or not at all."""
        step = next_step(self._plan, self._ended)
        if step is Step.GO_ON:
            return None
        evaluator = evaluator_of(self._plan)
        if step is Step.DONE and evaluator is not None and evaluator not in self._ended:
            run = self._team.seats[evaluator].run
            if run is not None and run.process is not None:
                run.training_ended()
                return EVALUATOR_SECONDS
        return CULPRIT_SECONDS if step is Step.FAILED and lacks_culprit(self._plan, self._ended) else 0

    async def _end(self, runs: Mapping[int, ReplicaRun], alarm: Alarm | None) -> None:
        """End what still runs. After a failure in its gang a replica has little worth saving, but may be saving it."""
        team = self._team
        has_time = team.stopping.is_set() or alarm is not None or not self._plan.is_gang
        for_rest = float("inf") if has_time else REST_GRACE_SECONDS
        await asyncio.gather(
            *(run.end(min(run.launch.kill_grace_seconds, for_rest), team.hurry) for run in runs.values())
        )
        for number, run in runs.items():
            if run.process is not None:
                run.leftover = await asyncio.to_thread(team.host.memory_left, team.members[number])

    def _judge(self, run: ReplicaRun, stop: StopOrder | None) -> Outcome:
        outcome = run.judge(stop)
        return outcome if self._meeting is None else self._meeting.explain(run, outcome)

    def _settle(self, alarm: Alarm | None) -> Verdict:
        """Judge what was ended, then all of them together."""
        order = self._team.stop
        by_number: dict[int, Ended] = {}
        for number, run in self._runs.items():
            by_us = number not in self._ended or bool(run.survivors)
            outcome = run.with_leftover(run.judge(order) if by_us else self._ended[number])
            by_number[number] = Ended(outcome, run.died_at, by_us=by_us)
        return settle(
            self._plan,
            by_number,
            stop=None if order is None else Outcome(AttemptState.STOPPED, order.cause, order.reason),
            alarm=None if alarm is None else (alarm.replica, Outcome(AttemptState.FAILED, alarm.cause, alarm.message)),
        )
