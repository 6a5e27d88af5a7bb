"""Replicas that live and die together: what they are, what was asked of them, and how often they may be restarted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from airflow_tf.core.devices import Member
from airflow_tf.core.identity import digest, make_token
from airflow_tf.core.launch import Plan, ReplicaLaunch
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.policy import may_restart
from airflow_tf.core.states import ExitCause
from airflow_tf.supervisor import results
from airflow_tf.supervisor.attempt import ReplicaRun, StopOrder, Watchdog
from airflow_tf.supervisor.host import Host
from airflow_tf.supervisor.placement import write_placement
from airflow_tf.supervisor.protocol import Attach
from airflow_tf.supervisor.seat import Seat

log = logging.getLogger(__name__)


class Team:
    """What all attempts of one drive share.

    ``stop`` is why it was asked to end; ``stopping`` is set with it, ``hurry`` when no time for a last checkpoint is
    left.
    """

    def __init__(self, host: Host, seats: Mapping[int, Seat], request: Attach, gang_folder: Path) -> None:
        self.host = host
        self.seats = dict(seats)
        self.plan: Plan = request.plan
        self.generation = request.generation
        self.members: dict[int, Member] = {member.replica: member for member in request.members}
        self.folder = gang_folder
        self.stop: StopOrder | None = None
        self.stopping = asyncio.Event()
        self.hurry = asyncio.Event()
        self.restarts_used = 0
        self._launches: dict[int, ReplicaLaunch] = {launch.replica: launch for launch in request.launches}

    def __str__(self) -> str:
        """As messages call it."""
        return f"replica {min(self.seats)}" if len(self.seats) == 1 else "the gang"

    def watchdogs(self) -> Sequence[Watchdog]:
        """Return what watches each attempt."""
        return self.host.watchdogs(self.plan, self.members)

    def notify(self, message: dict[str, Any]) -> None:
        """Tell all views of all seats."""
        for seat in self.seats.values():
            seat.notify(message)

    def note(self, text: str) -> None:
        """Tell all views a line."""
        self.notify({"type": "note", "text": text})

    def ask_to_stop(self, order: StopOrder) -> None:
        """Ask the running attempt to end: SIGTERM, grace, SIGKILL.

        The first order counts; only that a user marked its task, which is found out a little later, says more.
        """
        known = None if self.stop is None else self.stop.cause
        if order.at_once:
            self.hurry.set()
        if known is None or (known is ExitCause.STOPPED and order.cause is ExitCause.MARKED):
            log.info("%s: stop asked: %s", self, order.reason)
            self.stop = order
            self.stopping.set()

    def may_restart(self, outcome: Outcome) -> bool:
        """Tell whether what ended so may be started again."""
        return may_restart(outcome, restarts_used=self.restarts_used, restarts=self.plan.restarts)

    def restarting(self, outcome: Outcome) -> dict[str, Any]:
        """Return what views are told of a restart."""
        return {"type": "restarting", "outcome": outcome.to_json(), "restart": self.restarts_used}

    async def open(self, number: int) -> ReplicaRun:
        """Record a new attempt of one replica, and make its folders."""
        seat, member = self.seats[number], self.members[number]
        seat.tokens += 1
        token = make_token(self.host.installation, member.fence, number, seat.tokens)
        attempt = await self.host.record_start(seat, member, token)
        launch = self._complete(self._launches[number], member, attempt, token)
        seat.run = run = ReplicaRun(launch, partial(self.host.testify, member=member))
        _make_folders(launch)  # may fail, and then its attempt has to be ended
        return run

    def _complete(self, launch: ReplicaLaunch, member: Member, attempt: int, token: str) -> ReplicaLaunch:
        """Fill in what only the supervisor knows."""
        number = launch.replica
        home = results.replica_folder(self.folder, number, self.generation)
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
            seed=int(digest(self.folder, number, self.generation), 16),
        )

    async def start(self, run: ReplicaRun) -> None:
        """Start a replica's process, unless a stop comes first."""
        await run.start(self.host, self.stopping, self.plan.start_timeout_seconds)
        if run.process is not None:
            self.seats[run.launch.replica].notify(run.attempt_message())

    async def write(self, run: ReplicaRun, outcome: Outcome) -> None:
        """Write a replica's result durably, before anybody is told."""
        await asyncio.to_thread(write_placement, run.launch)
        await asyncio.to_thread(results.write_outcome, run.folder, outcome)

    async def record(self, run: ReplicaRun, outcome: Outcome) -> None:
        """Record a replica's outcome in the ledger."""
        launch = run.launch
        await self.host.record_end(launch, outcome)
        log.info("replica %s attempt %s: %s %s", launch.replica, launch.attempt, outcome.state, outcome.message)


def _make_folders(launch: ReplicaLaunch) -> None:
    Path(launch.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    Path(launch.checkpoint_folder).mkdir(mode=0o700, exist_ok=True)
