"""Retention: run folders of this host and rows of the ledger that nothing needs any more."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from airflow_tf.cli.output import Row
from airflow_tf.core.identity import RunFolders
from airflow_tf.core.settings import Settings
from airflow_tf.core.units import format_bytes
from airflow_tf.ledger import Ledger
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.ledger.retention import Pruned
from airflow_tf.supervisor.retention import OldFolder, obstacle, old_folders, remove

FAILED = "failed"
WOULD_GO = "would be removed"


@dataclass(frozen=True, slots=True)
class Pruner:
    """Removes what is older than the limit. Files go first: rows without files are found again, so a crash is harmless.

    Gangs that wait, hold devices or have a supervisor are never touched.
    """

    ledger: Ledger
    settings: Settings
    older_than_seconds: float
    wall_seconds: Callable[[], float] = time.time

    def plan(self) -> list[Row]:
        """Return what :meth:`prune` would remove now."""
        live = self._live_folders()
        folders = [_folder_row(folder, obstacle(folder.path, live), WOULD_GO) for folder in self._old()]
        return folders + [
            _gang_row(gang, WOULD_GO) for gang in self.ledger.prune(self.older_than_seconds, dry_run=True)
        ]

    def prune(self) -> list[Row]:
        """Remove, and return a row for each thing."""
        rows = []
        for folder in self._old():
            try:
                rows.append(_folder_row(folder, remove(folder.path, self._live_folders()), "removed"))
            except OSError as error:
                rows.append(_folder_row(folder, "", FAILED) | {"reason": str(error)})
        return rows + [_gang_row(gang, "removed") for gang in self.ledger.prune(self.older_than_seconds)]

    def _old(self) -> list[OldFolder]:
        return list(old_folders(self.settings.home / "runs", self.wall_seconds() - self.older_than_seconds))

    def _live_folders(self) -> set[Path]:
        """Return the run folders of gangs that hold devices or wait for some."""
        reader = LedgerReader(self.ledger)
        keys = {row.gang_key for row in reader.reservations()} | {row.gang_key for row in reader.queue()}
        runs = [run for key in keys for run in reader.runs(name=key)]
        return {RunFolders(self.settings.home, run.dag_id, run.run_id).root for run in runs}


def _folder_row(folder: OldFolder, kept: str, done: str) -> Row:
    return {
        "what": "run folder",
        "name": folder.path.name,
        "last_used": datetime.fromtimestamp(folder.used_at, UTC).isoformat(timespec="seconds"),
        "bytes": folder.size_bytes,
        "result": "kept" if kept else done,
        "reason": kept,
    }


def _gang_row(gang: Pruned, done: str) -> Row:
    return {"what": "ledger rows", "name": gang.label, "last_used": "", "bytes": None, "result": done, "reason": ""}


def shown_pruned(row: Row) -> Row:
    """Return what a table shows of it."""
    size = row.pop("bytes")
    return row | {"size": "" if size is None else format_bytes(size)}
