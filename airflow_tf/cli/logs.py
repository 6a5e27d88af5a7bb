"""The output of a run's replicas, read from their files on this host."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from airflow_tf.core.errors import LedgerError
from airflow_tf.ledger.read import WAITING, LedgerReader, ReplicaRow, RunRow
from airflow_tf.ledger.schema import RUNNING
from airflow_tf.supervisor.client import has_supervisor
from airflow_tf.supervisor.output import hole_end
from airflow_tf.supervisor.results import OUTPUT_FILE, replica_folder
from airflow_tf.supervisor.tail import OutputTail

POLL_SECONDS = 0.5
_BLOCK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Selection:
    """Which output is wanted: of one replica or all, of one attempt or the last one, of it all or the last lines."""

    replica: int | None = None
    attempt: int | None = None
    lines: int | None = None


@dataclass(slots=True)
class LogReader:
    """Print the output of gangs, each line once; with the replica before it where there are several.

    :param gangs: keys of the gangs.
    """

    reader: LedgerReader
    gangs: Sequence[str]
    wanted: Selection
    say: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    _tails: dict[tuple[str, int, int], OutputTail] = field(default_factory=dict)

    def show(self) -> None:
        """Print what there is.

        :raises LedgerError: if there is no such replica or attempt, its files are not here, or nothing was started.
        """
        found = self._replicas()
        shown = [self._forward(run, replica, many=len(found) > 1) for run, replica in found]
        if not any(shown):
            labels = ", ".join(dict.fromkeys(run.label for run, _ in found))
            raise LedgerError(
                f"there is no output of {labels} yet", todo="'airflow tf runs' tells what it waits for; --follow waits."
            )

    def follow(self) -> None:
        """Print what there is and what is added, until all replicas have ended."""
        while True:
            found = self._replicas()
            has_ended = bool(found) and all(_has_ended(run, replica) for run, replica in found)
            for run, replica in found:
                self._forward(run, replica, many=len(found) > 1)
            if has_ended:
                return
            self.sleep(POLL_SECONDS)

    def _replicas(self) -> list[tuple[RunRow, ReplicaRow]]:
        runs = [run for key in self.gangs for run in self.reader.runs(name=key)]
        found = [(run, replica) for run in runs for replica in run.replicas]
        number = self.wanted.replica
        chosen = [(run, replica) for run, replica in found if number is None or replica.replica == number]
        if found and not chosen:
            known = ", ".join(sorted({str(replica.replica) for _, replica in found}))
            raise LedgerError(f"there is no replica {number}", f"there are {known}", "Give one of these by --replica.")
        return chosen

    def _forward(self, run: RunRow, replica: ReplicaRow, *, many: bool) -> bool:
        """Print what is new of a replica; False if it has no output to show."""
        last = replica.attempts if self.wanted.attempt is None else self.wanted.attempt
        if last > replica.attempts or last < 1:
            if self.wanted.attempt is None:
                return False
            what, todo = f"replica {replica.replica} has no attempt {last}", "Leave --attempt out to see the last one."
            raise LedgerError(what, f"it has {replica.attempts}", todo)
        where = (run.key, replica.replica, replica.generation)
        if where not in self._tails:
            self._tails[where] = self._open(run, replica, last, f"[{run.task_id} {replica.replica}] " if many else "")
        self._tails[where].forward(last, final=last < replica.attempts or replica.state not in RUNNING)
        return True

    def _open(self, run: RunRow, replica: ReplicaRow, attempt: int, prefix: str) -> OutputTail:
        if run.folder is None or not Path(run.folder).is_dir():
            raise LedgerError(
                f"the files of {run.label} are not on this host",
                f"they were in {run.folder} on the host that it ran on",
                "Look there, or in the log of its task in Airflow; 'airflow tf prune' may have removed them.",
            )
        folder = replica_folder(Path(run.folder), replica.replica, replica.generation)
        begin = 0
        if self.wanted.lines is not None:
            begin = last_lines(folder / f"attempt-{attempt}" / OUTPUT_FILE, self.wanted.lines)

        def emit(text: str) -> None:
            for line in text.split("\n"):
                self.say(f"{prefix}{line}")

        return OutputTail(folder, emit, (attempt, begin))


def _has_ended(run: RunRow, replica: ReplicaRow) -> bool:
    """Tell whether nothing more is to come: between two attempts a replica keeps its devices."""
    if replica.state in RUNNING or replica.devices:
        return run.folder is not None and Path(run.folder).is_dir() and not has_supervisor(Path(run.folder))
    return replica.state != WAITING or run.cancelled_by is not None


def last_lines(path: Path, lines: int) -> int:
    """Return the offset at which the last ``lines`` lines of an output begin; 0 where there is none."""
    try:
        with path.open("rb") as file:
            end, first = file.seek(0, os.SEEK_END), hole_end(path)
            left = lines + 1  # the line end before the first of them
            if end > first and os.pread(file.fileno(), 1, end - 1) != b"\n":
                left -= 1  # the last line is still open
            return _back(file.fileno(), first, end, left)
    except FileNotFoundError:
        return 0


def _back(descriptor: int, first: int, end: int, line_ends: int) -> int:
    """Return the offset behind the last but ``line_ends - 1``-th line end before ``end``, at least ``first``."""
    while end > first and line_ends > 0:
        begin = max(first, end - _BLOCK_BYTES)
        block = os.pread(descriptor, end - begin, begin)
        at = len(block)
        while line_ends and (at := block.rfind(b"\n", 0, at)) >= 0:
            line_ends -= 1
            if not line_ends:
                return begin + at + 1
        end = begin
    return max(first, end) if line_ends else end
