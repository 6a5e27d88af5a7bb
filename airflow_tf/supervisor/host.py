"""What a drive needs of its supervisor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from airflow_tf.core.causes import Evidence
from airflow_tf.core.devices import Member
from airflow_tf.core.launch import Plan, ReplicaLaunch
from airflow_tf.core.ledger import Outcome
from airflow_tf.supervisor.attempt import ReplicaRun, Starter, Watchdog
from airflow_tf.supervisor.seat import Seat


class Host(Starter, Protocol):
    """The supervisor, for a drive."""

    installation: str

    async def confirm(self, members: Sequence[Member]) -> None:
        """Confirm the members in the ledger and take their devices' locks, all or none."""
        ...

    async def free(self, member: Member, stuck: ReplicaRun | None) -> None:
        """Release the member in the ledger and drop its locks; ``stuck`` is what keeps its devices nevertheless."""
        ...

    def testify(self, run: ReplicaRun, member: Member) -> Evidence:
        """Say what this host knows of a replica's failure; blocks."""
        ...

    def memory_left(self, member: Member) -> str:
        """Wait until the memory of the member's devices is free; say what is not; blocks."""
        ...

    def watchdogs(self, plan: Plan, members: Mapping[int, Member]) -> Sequence[Watchdog]:
        """Return what watches an attempt on these devices."""
        ...

    async def bar(self, member: Member, uuids: Sequence[str], why: str) -> None:
        """Offer devices of a member to nobody for a while."""
        ...

    async def record_start(self, seat: Seat, member: Member, token: str) -> int:
        """Record a new attempt and return its number."""
        ...

    async def record_end(self, launch: ReplicaLaunch, outcome: Outcome) -> None:
        """Record an outcome, however long the ledger is away."""
        ...
