"""Training runs as the ledger knows them."""

from __future__ import annotations

from pathlib import Path

from airflow_tf.cli.output import Row
from airflow_tf.core.errors import LedgerError
from airflow_tf.ledger.read import LedgerReader, ReplicaRow, RunRow
from airflow_tf.ledger.schema import RUNNING
from airflow_tf.supervisor.acquire import this_host
from airflow_tf.supervisor.client import has_supervisor

LOST = "lost?"
"""State of a replica that the ledger calls alive although its supervisor is gone, or on another host silent."""


def run_rows(
    reader: LedgerReader, dag_id: str | None = None, *, state: str | None = None, limit: int | None = None
) -> list[Row]:
    """Return a row for every replica of gangs, newest gang first; ``limit`` is the number of gangs.

    :param state: only gangs of which a replica is in this state, and only those replicas.
    """
    held = {(row.gang_key, row.replica): row for row in reader.reservations()}
    here = this_host().name
    rows = []
    for run in reader.runs(dag_id, state=state, limit=limit):
        is_gone = _supervisor_is_gone(run)
        for replica in run.replicas or (None,):
            holds = None if replica is None else held.get((run.key, replica.replica))
            is_silent = is_gone if holds is None or holds.host == here else holds.is_suspect
            if state is None or (replica is not None and replica.state == state):
                rows.append(_row(run, replica, is_gone=is_silent))
    return rows


def _supervisor_is_gone(run: RunRow) -> bool:
    """Tell whether the gang has a folder on this host but no supervisor in it."""
    return run.folder is not None and Path(run.folder).exists() and not has_supervisor(Path(run.folder))


def _row(run: RunRow, found: ReplicaRow | None, *, is_gone: bool) -> Row:
    replica = found or ReplicaRow(0, ())
    runs = replica.state in RUNNING
    is_lost = runs and is_gone
    return {
        "run": run.key[:8],
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        "task": run.task_id,
        "since": run.since,
        "cancelled_by": run.cancelled_by,
        "replica": None if found is None else replica.replica,
        "state": LOST if is_lost else replica.state,
        "generation": replica.generation,
        "attempts": replica.attempts,
        "step": replica.step,
        "devices": list(replica.devices),
        "pid": replica.pid if runs and not is_gone else None,
        "started": replica.started,
        "ended": replica.ended,
        "cause": replica.cause,
        "message": replica.message,
    }


def shown_run(row: Row) -> Row:
    """Return what a table shows of a replica: of its message the first line."""
    why = str(row["message"]).partition("\n")[0]
    if row["cancelled_by"] and not why:
        why = f"cancelled by {row['cancelled_by']}"
    return {
        **{name: row[name] for name in ("run", "dag_id", "run_id")},
        "task": row["task"] if row["replica"] is None else f"{row['task']}[{row['replica']}]",
        **{name: row[name] for name in ("state", "attempts", "step", "devices", "pid")},
        "since": row["started"] or row["since"],
        "ended": row["ended"],
        "cause": row["cause"] if row["cause"] != "none" else "",
        "message": why,
    }


def find_gangs(reader: LedgerReader, text: str) -> list[RunRow]:
    """Return the gangs that ``text`` names: one by the beginning of its key, or all of one DAG run.

    :raises LedgerError: if it names none, or does not say which.
    """
    runs = reader.runs(name=text)
    found = [run for run in runs if run.run_id == text] or runs
    if not found:
        raise LedgerError(f"no training run {text!r}", todo="List them with 'airflow tf runs'.")
    if len({(run.dag_id, run.run_id) for run in found}) > 1:
        keys = ", ".join(f"{run.key[:8]} ({run.label})" for run in found)
        raise LedgerError(f"{text!r} names {len(found)} training runs", keys, "Give one of these keys.")
    return found
