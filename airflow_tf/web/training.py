"""The training tab: a run's gangs, replicas and attempts from the ledger, and what their run folders tell."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_tf.core.checkpoint.folder import checkpoints
from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.states import AttemptState
from airflow_tf.ledger.read import AttemptRow, LedgerReader, ReplicaRow, RunRow
from airflow_tf.supervisor.placement import PLACEMENT_FILE
from airflow_tf.supervisor.results import attempt_number, replica_folder
from airflow_tf.web.curves import Cursor, read_curve, step_rate
from airflow_tf.web.models import Attempt, Checkpoint, Curve, Details, Replica, Training

SESSION_CONFIG_FILE = "session_config.json"
_MAX_NAMES = 200


@dataclass(frozen=True, slots=True)
class Run:
    """The gangs of one DAG run, as far as a page names them: of one task, of one map index, or all."""

    dag_id: str
    run_id: str
    task_id: str | None = None

    def gangs(self, reader: LedgerReader) -> list[RunRow]:
        """Return them, newest first."""
        return [row for row in reader.runs(self.dag_id, run_id=self.run_id) if self.task_id in {None, row.task_id}]

    def gang(self, reader: LedgerReader, key: str) -> RunRow | None:
        """Return the one with this key, None if the run has none such."""
        return next((row for row in self.gangs(reader) if row.key == key), None)


def training(reader: LedgerReader, run: RunRow) -> Training:
    """Return what is known of a gang."""
    attempts = reader.attempts(run.key)
    folder = readable_folder(run)
    rates = {row.replica: _rate(folder, row) for row in run.replicas} if folder else {}
    slowest = slowest_of(rates)
    signs = {(row.replica, row.generation): row.updated for row in attempts}
    return Training(
        key=run.key,
        task_id=run.task_id,
        since=run.since,
        renewed=run.renewed,
        cancelled_by=run.cancelled_by,
        count=run.count,
        is_here=folder is not None,
        replicas=[
            _replica(row, rates.get(row.replica), signs.get((row.replica, row.generation)), row.replica == slowest)
            for row in run.replicas
        ],
        attempts=[_attempt(row) for row in attempts],
    )


def slowest_of(rates: dict[int, float | None]) -> int | None:
    """Return the replica that gets on slowest, None where there is nobody to compare it with."""
    known = {replica: rate for replica, rate in rates.items() if rate is not None}
    if len(set(known.values())) < 2:  # noqa: PLR2004 (alone, or all alike)
        return None
    return min(known, key=lambda replica: known[replica])


def readable_folder(run: RunRow) -> Path | None:
    """Return the gang's run folder, None where this process cannot read it: it is on another host, or not ours."""
    if run.folder is None:
        return None
    try:
        return Path(run.folder) if any(Path(run.folder).iterdir()) else None
    except OSError:
        return None


def _rate(folder: Path, row: ReplicaRow) -> float | None:
    """Return the rate of a replica that runs."""
    if row.state not in {AttemptState.STARTING, AttemptState.RUNNING} or not row.attempts:
        return None
    return step_rate(replica_folder(folder, row.replica, row.generation) / f"attempt-{row.attempts}")


def _replica(row: ReplicaRow, rate: float | None, updated: str | None, is_slowest: bool) -> Replica:  # noqa: FBT001 (one call)
    return Replica(
        replica=row.replica,
        state=row.state,
        generation=row.generation,
        attempts=row.attempts,
        devices=list(row.devices),
        step=row.step,
        rate=rate,
        is_slowest=is_slowest,
        cause=row.cause,
        message=row.message,
        started=row.started,
        updated=updated,
        ended=row.ended,
    )


def _attempt(row: AttemptRow) -> Attempt:
    return Attempt.model_validate(asdict(row))


def curves(run: RunRow, folder: Path, asked: Sequence[tuple[int, Cursor]]) -> list[Curve]:
    """Return what the curves of some replicas have gained."""
    generations = {row.replica: row.generation for row in run.replicas}
    return [
        read_curve(replica_folder(folder, replica, generations[replica]), replica, generations[replica], cursor)
        for replica, cursor in asked
        if replica in generations
    ]


def details(run: RunRow, folder: Path, replica: int) -> Details | None:
    """Return what the folders of a replica tell; None if the gang has no such replica."""
    row = next((each for each in run.replicas if each.replica == replica), None)
    if row is None:
        return None
    home = replica_folder(folder, replica, row.generation)
    attempts = sorted(home.glob("attempt-*"), key=attempt_number)
    placement = _newest(attempts, PLACEMENT_FILE)
    return Details(
        replica=replica,
        session_config=_newest(attempts, SESSION_CONFIG_FILE),
        placement=placement.get("counts", {}),
        on_cpu=list(placement.get("on_cpu", {}))[:_MAX_NAMES],
        transfers=placement.get("transfers", {}),
        checkpoints=_checkpoints(home, *attempts[-1:]),
    )


def placement(run: RunRow, folder: Path, replica: int) -> dict[str, Any]:
    """Return the placement report of a replica's newest attempt that has one; empty where none has."""
    row = next((each for each in run.replicas if each.replica == replica), None)
    if row is None:
        return {}
    attempts = replica_folder(folder, replica, row.generation).glob("attempt-*")
    return _newest(sorted(attempts, key=attempt_number), PLACEMENT_FILE)


def _newest(attempts: Iterable[Path], name: str) -> dict[str, Any]:
    """Return a report of the newest attempt that wrote it; empty where none did."""
    for folder in reversed(list(attempts)):
        with contextlib.suppress(OSError, ValueError):  # not written, or not whole yet: what came before is shown
            data = json.loads((folder / name).read_text())
            return data if isinstance(data, dict) else {}
    return {}


def _checkpoints(*homes: Path) -> list[Checkpoint]:
    """Return the checkpoints below these folders, the newest first; one may be removed while it is looked at."""
    found = []
    for folder in (home / "checkpoints" for home in homes):  # that of an attempt where each begins anew
        with contextlib.suppress(CheckpointError, OSError):
            found += checkpoints(folder) if folder.is_dir() else []
    return [
        Checkpoint(
            name=each.name,
            step=each.step,
            size_bytes=each.size_bytes,
            saved=datetime.fromtimestamp(each.seconds, UTC).isoformat(timespec="seconds"),
            problem=each.problem,
        )
        for each in reversed(found)
    ]
