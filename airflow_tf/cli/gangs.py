"""Devices and training runs as the ledger knows them, and how a run is cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_tf.core.devices import Health, Reading
from airflow_tf.core.errors import LedgerError
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import AttemptState
from airflow_tf.core.units import format_bytes
from airflow_tf.devices.registry import KINDS, read_all
from airflow_tf.ledger import Ledger
from airflow_tf.ledger.read import LedgerReader, ReplicaRow, RunRow
from airflow_tf.supervisor.acquire import reclaim, this_host

POLL_SECONDS = 0.5
RESERVED = "reserved"  # free to look at, but promised to a run whose replica has not started
_ALIVE = {state.value for state in AttemptState if not state.is_terminal}


def device_rows(reader: LedgerReader, settings: Settings) -> list[dict[str, Any]]:
    """Return a row for every device: of this host as it looks now, of others as they last looked."""
    here = this_host().name
    live = {reading.device.uuid: reading for kind in KINDS for reading in read_all(settings, kind)}
    rows = []
    for row in reader.devices():
        reading = live.pop(row.uuid, None) if row.host == here else None
        holder, state = row.holder, reading.health.value if reading else row.health
        rows.append(
            {
                "host": row.host,
                "device": row.uuid,
                "kind": row.kind,
                "name": row.name,
                "memory": "" if row.memory_bytes is None else format_bytes(row.memory_bytes),
                "state": RESERVED if holder and state == Health.FREE else state,
                "held_by": f"{holder.gang_label}[{holder.replica}]" if holder else "",
                "since": holder.since if holder else "",
                "reason": reading.reason if reading else row.reason,
            }
        )
    return rows + [_unregistered(here, reading) for reading in live.values()]


def _unregistered(host: str, reading: Reading) -> dict[str, Any]:
    device = reading.device
    return {
        "host": host,
        "device": device.uuid,
        "kind": device.kind,
        "name": device.name,
        "memory": "" if device.memory_bytes is None else format_bytes(device.memory_bytes),
        "state": reading.health.value,
        "held_by": "",
        "since": "",
        "reason": reading.reason,
    }


def run_rows(reader: LedgerReader, dag_id: str | None = None) -> list[dict[str, Any]]:
    """Return a row for every replica of every gang, newest gang first."""
    return [_run_row(run, replica) for run in reader.runs(dag_id) for replica in run.replicas or (None,)]


def _run_row(run: RunRow, replica: ReplicaRow | None) -> dict[str, Any]:
    return {
        "run": run.key[:8],
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        "task": run.task_id,
        "replica": "" if replica is None else replica.replica,
        "state": "" if replica is None else replica.state,
        "attempts": "" if replica is None else replica.attempts,
        "step": "" if replica is None or replica.step is None else replica.step,
        "devices": "" if replica is None else " ".join(replica.devices),
        "pid": "" if replica is None or replica.pid is None else replica.pid,
        "since": run.since,
        "message": _first_line(run, replica),
    }


def _first_line(run: RunRow, replica: ReplicaRow | None) -> str:
    message = replica.message.partition("\n")[0] if replica else ""
    return f"cancelled by {run.cancelled_by}" if run.cancelled_by and not message else message


def find_gangs(reader: LedgerReader, text: str) -> list[RunRow]:
    """Return the gangs that ``text`` names: one by the beginning of its key, or all of one DAG run.

    :raises LedgerError: if it names none, or does not say which.
    """
    runs = reader.runs()
    found = [run for run in runs if run.run_id == text] or [run for run in runs if run.key.startswith(text)]
    if not found:
        raise LedgerError(f"no training run {text!r}", todo="List them with 'airflow tf runs'.")
    if len({(run.dag_id, run.run_id) for run in found}) > 1:
        keys = ", ".join(f"{run.key[:8]} ({run.label})" for run in found)
        raise LedgerError(f"{text!r} names {len(found)} training runs", keys, "Give one of these keys.")
    return found


@dataclass(frozen=True, slots=True)
class Canceller:
    """Asks gangs to stop by the ledger and waits until they have; ``by`` is shown to whoever asks why."""

    ledger: Ledger
    settings: Settings
    by: str
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def cancel(self, gangs: Sequence[RunRow], timeout_seconds: float) -> list[dict[str, Any]]:
        """Cancel ``gangs`` and return a row for each; ``left`` says what still runs or holds devices."""
        was_alive = {gang.key: bool(self._left(gang.key)) for gang in gangs}
        for gang in gangs:
            self.ledger.cancel(gang.key, self.by)
        deadline = self.monotonic() + timeout_seconds
        while any(self._left(gang.key) for gang in gangs) and self.monotonic() < deadline:
            # A supervisor that died cannot hear the request: end what it left, and free its devices.
            reclaim(self.ledger, self.settings, this_host())
            self.sleep(POLL_SECONDS)
        rows = []
        for gang in gangs:
            left = self._left(gang.key)
            result = "still running" if left else "stopped" if was_alive[gang.key] else "had ended"
            rows.append({"run": gang.key[:8], "task": gang.label, "result": result, "left": "; ".join(left)})
        return rows

    def _left(self, key: str) -> list[str]:
        """Return what of the gang still runs or holds devices, one line each."""
        reader = LedgerReader(self.ledger)
        return [*_running(reader, key), *_holding(reader, key)]


def _running(reader: LedgerReader, key: str) -> Iterator[str]:
    for run in reader.runs():
        for replica in run.replicas if run.key == key else ():
            if replica.state in _ALIVE:
                yield f"replica {replica.replica} is {replica.state} (pid {replica.pid})"


def _holding(reader: LedgerReader, key: str) -> Iterator[str]:
    for row in reader.reservations():
        if row.gang_key == key:
            yield f"replica {row.replica} holds {' '.join(row.devices)} on {row.host}"
