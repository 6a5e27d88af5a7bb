"""The course of one attempt: replicas are started together, watched, ended, and judged together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from airflow_tf.core.errors import AirflowTfError
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import AttemptState
from airflow_tf.core.verdict import Ended, Step, Verdict, evaluator_of, lacks_culprit, next_step, rejoining, settle
from airflow_tf.supervisor.attempt import Alarm, Attempt, ReplicaRun, StopOrder, resume_point
from airflow_tf.supervisor.carrier import Carrier
from airflow_tf.supervisor.rendezvous import Rendezvous
from airflow_tf.supervisor.team import Team

CULPRIT_SECONDS = 10.0
"""How long the members of a gang may take to end after the first of them has lost its peers."""

INCIDENT_SECONDS = 1.0
"""Deaths of members within so long after the first are one incident: judged together, restarted once."""

REST_GRACE_SECONDS = 5.0
"""Longest time between SIGTERM and SIGKILL for what is left of a gang that has failed or whose work is done."""


class Course:
    """One attempt of a team's replicas."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._plan = team.plan
        self._runs: dict[int, ReplicaRun] = {}
        self._ended: dict[int, Outcome] = {}
        self._swept: set[int] = set()
        self._deadline: float | None = None
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
            await self._end(alarm)
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
        team = self._team
        attempt = Attempt(self._runs, team.note)
        watchdogs = [*team.watchdogs(), *([self._meeting.watch] if self._meeting is not None else [])]
        alarms = [asyncio.ensure_future(watchdog(attempt)) for watchdog in watchdogs]
        stopping = asyncio.ensure_future(team.stopping.wait())
        try:
            while True:
                if await self._note_ends():
                    continue
                alarm = next((alarm.result() for alarm in alarms if alarm.done()), None)
                patience = await self._patience_seconds()
                if team.stopping.is_set() or alarm is not None or patience == 0:
                    return alarm
                for number in {*self._ended, *self._swept}:
                    team.seats[number].tell_waiting()
                waited: set[asyncio.Future[Any]] = {*self._pending(), *alarms, stopping}
                news, _ = await asyncio.wait(waited, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not news:
                    return None
        finally:
            for waiting in (*alarms, stopping):
                waiting.cancel()

    def _pending(self) -> set[asyncio.Future[int | None]]:
        """Return the ends that have not been counted yet."""
        counted = {*self._ended, *self._swept}
        return {run.process.status for n, run in self._runs.items() if run.process is not None and n not in counted}

    async def _note_ends(self) -> bool:
        """Judge what has ended by itself; tell whether something was started again, and is to be looked at anew.

        All that ended together are judged before anything follows: what happened to several at once happened once.
        """
        team, news = self._team, await self._judge_ends({})
        if rejoining(self._plan, self._ended, news) and (alive := self._pending()):
            await asyncio.wait(alive, timeout=INCIDENT_SECONDS)
            news = await self._judge_ends(news)
        back = rejoining(self._plan, self._ended, news)
        if team.stopping.is_set() or not all(team.may_restart(news[number]) for number in back):
            back = []
        self._ended |= {number: outcome for number, outcome in news.items() if number not in back}
        team.restarts_used += bool(back)
        for number in back:
            await self._rejoin(number, news[number])
        return bool(back)

    async def _judge_ends(self, known: Mapping[int, Outcome]) -> dict[int, Outcome]:
        """Return what is known, and how the others ended that have ended and were not counted before."""
        news = dict(known)
        for number, run in self._runs.items():
            if run.has_ended and run.has_begun and number not in {*news, *self._ended, *self._swept}:
                news[number] = await asyncio.to_thread(self._judge, run, None)
        return news

    async def _rejoin(self, number: int, outcome: Outcome) -> None:
        """Start a replica again that failed alone, in the cluster of this attempt."""
        team, lost = self._team, self._runs[number]
        await self._end_all({number: lost}, REST_GRACE_SECONDS)
        if lost.keeps_device:
            self._ended[number] = outcome
            return
        await team.write(lost, outcome)
        await team.record(lost, outcome)
        team.seats[number].notify(team.restarting(outcome))
        run = self._runs[number] = await team.open(number)
        known = {name: getattr(lost.launch, name) for name in ("resume_from", "environment", "watched_folder")}
        run.launch = run.launch.for_attempt(**known)
        if self._meeting is not None:
            self._meeting.expect_again(number)
        await team.start(run)

    async def _patience_seconds(self) -> float | None:
        """Return how long to wait for what ends next: for ever, for the culprit of a failure, or not at all.

        A limited time is counted from its beginning, whatever ends within it.
        """
        grace = await self._grace_seconds()
        if not grace:
            return grace
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + grace
        return max(0.0, self._deadline - now)

    async def _grace_seconds(self) -> float | None:
        """Return how long what still runs may take; None while the attempt goes on.

        When the training is done only its evaluator may still run. What served or waited is ended at once: nothing
        that happens to it afterwards is a failure of the training.
        """
        step, evaluator = next_step(self._plan, self._ended), evaluator_of(self._plan)
        if step is Step.GO_ON:
            return None
        if step is Step.FAILED:
            return CULPRIT_SECONDS if lacks_culprit(self._plan, self._ended) else 0
        run = None if evaluator is None or evaluator in self._ended else self._runs[evaluator]
        if run is None or run.process is None:
            return 0
        if self._deadline is None:
            run.training_ended()
            rest = {n: other for n, other in self._runs.items() if n not in self._ended and n != evaluator}
            self._swept |= set(rest)
            await self._end_all(rest, REST_GRACE_SECONDS)
        return self._plan.evaluator_grace_seconds

    async def _end(self, alarm: Alarm | None) -> None:
        """End what still runs. After a failure in its gang a replica has little worth saving, but may be saving it."""
        has_time = self._team.stopping.is_set() or alarm is not None or not self._plan.is_gang
        rest = {number: run for number, run in self._runs.items() if number not in self._swept}
        await self._end_all(rest, float("inf") if has_time else REST_GRACE_SECONDS)

    async def _end_all(self, runs: Mapping[int, ReplicaRun], longest_grace_seconds: float) -> None:
        team = self._team
        await asyncio.gather(
            *(run.end(min(run.launch.kill_grace_seconds, longest_grace_seconds), team.hurry) for run in runs.values())
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
            alarm=None if alarm is None else (alarm.replica, alarm.outcome),
        )
