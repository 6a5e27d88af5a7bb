"""A drive: attempts of the replicas that live and die together, one after the other, under one restart budget.

Of ``independent`` replicas each has drives of its own; a gang has one for all its replicas.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from airflow_tf.core.errors import AirflowTfError, SupervisorLostError, to_payload
from airflow_tf.core.identity import View
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import CLEARED_REASON, AttemptState, ExitCause
from airflow_tf.supervisor import results
from airflow_tf.supervisor.attempt import StopOrder
from airflow_tf.supervisor.course import Course
from airflow_tf.supervisor.host import Host
from airflow_tf.supervisor.protocol import Attach
from airflow_tf.supervisor.seat import Seat
from airflow_tf.supervisor.team import Team

log = logging.getLogger(__name__)


class Drive:
    """Run attempts until one succeeds, the budget is used up, or somebody stops it.

    ``verdict`` is what the drive came to, None before its end and where it could not run at all.
    """

    def __init__(self, host: Host, seats: Mapping[int, Seat], request: Attach, gang_folder: Path) -> None:
        self.verdict: results.GangVerdict | None = None
        self._team = Team(host, seats, request, gang_folder)
        self._newest_try = request.view.try_number
        self._gives_way = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        """Tell whether the drive has ended."""
        return self._task is not None and self._task.done()

    def begin(self, on_end: Callable[[], None]) -> None:
        """Start driving."""
        for seat in self._team.seats.values():
            seat.drive, seat.generation, seat.outcome, seat.run = self, self._team.generation, None, None
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
        """Ask the running attempt to end. The first order counts.

        Where the task of one member was cleared, the views of the others are to go on with the new generation.
        """
        self._gives_way = self._gives_way or (self._team.plan.is_gang and order.reason == CLEARED_REASON)
        self._team.ask_to_stop(order)

    def stop_if_orphaned(self) -> None:
        """Stop where no view has looked at any of the replicas for the time that the views allowed."""
        seats = self._team.seats.values()
        grace = max(seat.orphan_grace_seconds for seat in seats)
        if any(seat.watchers for seat in seats) or time.monotonic() - max(seat.seen_at for seat in seats) < grace:
            return
        self.stop(StopOrder(f"no task looked after it for {grace:.0f} s"))

    async def _run(self) -> None:
        """Drive; tell the views how it ended.

        A failure of our own is told first and cleaned up after: what caused it, a full disk for instance, may keep
        the ledger away as well, and no view must wait for that.
        """
        team = self._team
        try:
            await team.host.confirm(list(team.members.values()))
        except AirflowTfError as error:
            team.notify({"type": "refused", "error": to_payload(error)})
            return
        try:
            await self._attempts()
        except Exception as error:  # whatever it is, a view must not wait for ever
            log.exception("%s", team)
            lost = SupervisorLostError(
                f"{team} could not be run",
                f"{type(error).__name__}: {error}",
                f"Look at the disk of {team.folder} and at the supervisor's log in it.",
            )
            team.notify({"type": "refused", "error": to_payload(lost)})
            await self._give_up(Outcome(AttemptState.LOST, ExitCause.INFRASTRUCTURE, str(lost)))
        else:
            await self._free()
            for seat in team.seats.values():
                if self._gives_way:
                    seat.tell_waiting()
                elif seat.outcome is not None:
                    seat.notify({"type": "result", "outcome": seat.outcome.to_json()})

    async def _give_up(self, outcome: Outcome) -> None:
        """End what runs, record the outcome of what has none yet, and only then give the devices back.

        Should this supervisor die in between, whoever takes the devices back records the rest.
        """
        team = self._team
        runs = [seat.run for seat in team.seats.values() if seat.run is not None]
        team.hurry.set()
        await asyncio.gather(*(run.end(0, team.hurry) for run in runs))
        try:
            for run in runs:
                await team.host.record_end(run.launch, outcome)
        finally:
            await self._free()

    async def _free(self) -> None:
        team = self._team
        for number, member in team.members.items():
            run, outcome = team.seats[number].run, team.seats[number].outcome
            if outcome is not None and outcome.state is AttemptState.FAILED and outcome.cause.needs_other_device:
                uuids = [device.uuid for device in member.devices]
                await team.host.bar(member, uuids, outcome.message.partition("\n")[0])
            await team.host.free(member, run if run is not None and run.keeps_device else None)

    async def _attempts(self) -> None:
        """Run attempts within the budget."""
        team = self._team
        await asyncio.to_thread(results.remove_verdict, team.folder)
        while True:
            verdict, is_stuck = await Course(team).run()
            if is_stuck or team.stop or not team.may_restart(verdict.root):
                if self._gives_way:
                    return
                self.verdict = results.GangVerdict(team.generation, self._newest_try, verdict.root)
                if team.plan.is_gang:
                    await asyncio.to_thread(results.write_verdict, team.folder, self.verdict)
                return
            team.restarts_used += 1
            team.notify(team.restarting(verdict.root))
