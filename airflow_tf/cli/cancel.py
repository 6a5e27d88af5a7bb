"""How a run is cancelled: asked by the ledger, and ended by force where nobody hears it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_tf.cli.output import Row
from airflow_tf.core.settings import Settings
from airflow_tf.ledger import Ledger
from airflow_tf.ledger.read import LedgerReader, RunRow
from airflow_tf.ledger.schema import RUNNING
from airflow_tf.supervisor.acquire import reclaim, this_host
from airflow_tf.supervisor.find import find_supervisor, kill_supervisor

POLL_SECONDS = 0.5
FORCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Canceller:
    """Asks gangs to stop by the ledger and waits until they have; ``by`` is shown to whoever asks why."""

    ledger: Ledger
    settings: Settings
    by: str
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def cancel(self, gangs: Sequence[RunRow], timeout_seconds: float, *, force: bool = False) -> list[Row]:
        """Cancel ``gangs`` and return a row for each; ``left`` says what still runs or holds devices.

        :param force: kill the supervisors that have not ended their replicas within the time.
        """
        was_alive = {gang.key: bool(self._left(gang)) for gang in gangs}
        for gang in gangs:
            self.ledger.cancel(gang.key, self.by)
        self._wait(gangs, timeout_seconds)
        killed = {gang.key: self._kill(gang) for gang in gangs if force and self._left(gang)}
        if killed:
            self._wait(gangs, FORCE_SECONDS)
        rows = []
        for gang in gangs:
            left = self._left(gang)
            ended = "killed" if killed.get(gang.key) else "stopped" if was_alive[gang.key] else "had ended"
            rows.append(
                {
                    "run": gang.key[:8],
                    "task": gang.label,
                    "result": "still running" if left else ended,
                    "left": left,
                    "remedy": self._remedy(gang) if left else "",
                }
            )
        return rows

    def _wait(self, gangs: Sequence[RunRow], seconds: float) -> None:
        """Wait until nothing is left of the gangs; take back what supervisors that died have left."""
        deadline = self.monotonic() + seconds
        while any(self._left(gang) for gang in gangs) and self.monotonic() < deadline:
            reclaim(self.ledger, self.settings, this_host())
            self.sleep(POLL_SECONDS)

    def _left(self, gang: RunRow) -> list[str]:
        """Return what of the gang still runs or holds devices, one line each."""
        reader = LedgerReader(self.ledger)
        return [*_running(reader, gang.key), *_holding(reader, gang.key)]

    @staticmethod
    def _kill(gang: RunRow) -> int | None:
        return None if gang.folder is None else kill_supervisor(Path(gang.folder))

    @staticmethod
    def _remedy(gang: RunRow) -> str:
        pid = None if gang.folder is None else find_supervisor(Path(gang.folder))
        if pid is None:
            return "No supervisor of it runs here: do it on its own host. What survives SIGKILL there needs a reboot."
        return f"Its supervisor (pid {pid}) has not ended it: wait longer, or kill it by --force."


def _running(reader: LedgerReader, key: str) -> Iterator[str]:
    for run in reader.runs(name=key):
        for replica in run.replicas:
            if replica.state in RUNNING:
                yield f"replica {replica.replica} is {replica.state} (pid {replica.pid})"


def _holding(reader: LedgerReader, key: str) -> Iterator[str]:
    for row in reader.reservations():
        if row.gang_key == key:
            yield f"replica {row.replica} holds {' '.join(row.devices)} on {row.host}"
