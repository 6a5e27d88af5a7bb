"""Looks after a replica while its task is deferred: says that somebody does, shows its output, notices its end."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_tf.core.identity import GangKey, View
from airflow_tf.core.ledger import GangLedger, ReplicaRecord
from airflow_tf.core.states import MARKED_REASON
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.supervisor.acquire import this_host
from airflow_tf.supervisor.client import has_supervisor
from airflow_tf.supervisor.results import replica_folder
from airflow_tf.supervisor.tail import OutputTail
from airflow_tf.triggers.shared import ask, in_thread, late_enough, shared_ledger, user_mark_of

LOOK_SECONDS = 4.0
FORWARD_BYTES = 2 * 2**20
"""Most output shown at one look, so that one replica that floods its log does not hold up the other triggers."""

SUSPECT_LOOK_SECONDS = 60.0

ENDED = "ended"
LOST = "its supervisor is gone"
SUPERSEDED = "a newer try, or a new generation, has taken over"
TIMED_OUT = "execution timeout"


@dataclass(frozen=True, slots=True)
class Watched:
    """Which replica a trigger looks after, for whom, and where it runs.

    :param folder: of the gang, on the host ``host_id``.
    :param label: what its output is marked with in the task's log.
    :param timeout_seconds: the task's execution timeout, counted by the ledger over all its views.
    """

    gang: GangKey
    replica: int
    view: View
    generation: int
    folder: str
    host_id: str
    label: str
    timeout_seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Watched:
        """Read what :meth:`to_json` gave."""
        return cls(**(data | {"gang": GangKey(**data["gang"]), "view": View(**data["view"])}))


class ReplicaTrigger(BaseTrigger):
    """Renew a view in the ledger and show the replica's output; fire when the task has something to do.

    It knows nothing that a restart of the triggerer could lose: how far the output was shown is in the ledger.

    :param watched: :class:`Watched` as JSON.
    """

    def __init__(self, watched: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watched = Watched.from_json(watched)
        self._tail: OutputTail | None = None
        self._lines: list[str] = []
        self._stop_asked = False
        self._suspects_at = 0.0

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments as plain JSON."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"watched": self.watched.to_json()}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once, with what happened."""
        began = time.monotonic()
        while True:
            # Before the ledger is read: a supervisor records how its replica ended before it ends itself.
            is_lost = await self._is_lost()
            record = await ask(self._renew, self.log)
            if record is None:
                event: str | None = SUPERSEDED
            else:
                await self._forward(record)
                event = await self._event(record, is_lost=is_lost)
            if event is not None:
                await late_enough(began)
                yield TriggerEvent(event)  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(self._pause_seconds(record))

    @functools.cached_property
    def _is_here(self) -> bool:
        return this_host().host_id == self.watched.host_id

    async def _is_lost(self) -> bool:
        """Tell whether the gang's supervisor is gone: by its lock, or on another host by its silence in the ledger."""
        if self._is_here:
            return await in_thread(lambda: not has_supervisor(Path(self.watched.folder)))
        if time.monotonic() < self._suspects_at:
            return False
        self._suspects_at = time.monotonic() + SUSPECT_LOOK_SECONDS
        rows = await in_thread(lambda: LedgerReader(shared_ledger()).reservations())
        where = (self.watched.gang.key, self.watched.replica)
        return any((row.gang_key, row.replica) == where and row.is_suspect for row in rows)

    def _renew(self, ledger: GangLedger) -> ReplicaRecord | None:
        """Say that somebody looks after the replica, and how far its output was shown; None if it was taken over."""
        watched = self.watched
        position = self._tail.position if self._tail is not None else None
        if not ledger.renew_view(watched.gang, watched.replica, watched.view, position):
            return None
        record = ledger.replicas(watched.gang)[watched.replica]
        return record if record.generation == watched.generation else None

    async def _forward(self, record: ReplicaRecord) -> None:
        """Show what is new of the output, if its file is on this host; else the task shows it at the end."""
        if not self._is_here:
            return
        if self._tail is None:
            folder = replica_folder(Path(self.watched.folder), self.watched.replica, self.watched.generation)
            self._tail = OutputTail(folder, self._lines.append, record.log_position)
        tail = self._tail
        await in_thread(lambda: tail.forward(record.attempts, limit_bytes=FORWARD_BYTES))
        for text in self._lines:
            self.log.info("[%s] %s", self.watched.label, text)
            await asyncio.sleep(0)
        self._lines.clear()

    async def _event(self, record: ReplicaRecord, *, is_lost: bool) -> str | None:
        timeout_seconds = self.watched.timeout_seconds
        if record.outcome is not None or is_lost:
            await ask(self._renew, self.log)  # the task goes on where this log ends
            return LOST if record.outcome is None else TIMED_OUT if self._stop_asked else ENDED
        if timeout_seconds is not None and record.watched_seconds >= timeout_seconds and not self._stop_asked:
            await self._ask_stop(f"its task's execution_timeout of {timeout_seconds:.0f} s is over")
            self._stop_asked = True
        return None

    def _pause_seconds(self, record: ReplicaRecord | None) -> float:
        """Return the time to the next look: not past the timeout."""
        timeout_seconds = self.watched.timeout_seconds
        if record is None or timeout_seconds is None or self._stop_asked:
            return LOOK_SECONDS
        return max(min(LOOK_SECONDS, timeout_seconds - record.watched_seconds), 0.1)

    async def _ask_stop(self, reason: str) -> None:
        watched = self.watched
        is_asked = await ask(
            lambda ledger: ledger.ask_stop(watched.gang, watched.replica, watched.view, reason), self.log
        )
        self.log.info("%s", f"the replica is being stopped: {reason}" if is_asked else f"not stopped: {SUPERSEDED}")

    async def on_kill(self) -> None:
        """Stop the replica because a user marked or cleared its task; not where another triggerer takes over.

        ``cleanup`` does nothing on purpose: a triggerer that restarts must not end training.
        """
        if mark := await user_mark_of(self):
            await self._ask_stop(f"{MARKED_REASON}{mark}")
