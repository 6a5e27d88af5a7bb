"""Durable results of attempts, and what is read back from an attempt's folder."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_tf.core.durable import sync_folder
from airflow_tf.core.launch import EVALUATION_FILE, METRICS_FILE
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.units import is_finite

log = logging.getLogger(__name__)

RESULT_FILE = "result.json"
VERDICT_FILE = "verdict.json"
OUTPUT_FILE = "output.log"
_TAIL_BYTES = 16 * 1024
_END_BYTES = 128 * 1024


def replica_folder(gang_folder: Path, replica: int, generation: int) -> Path:
    """Folder of one generation of a replica: its checkpoints and its attempts."""
    return gang_folder / f"replica-{replica}" / f"generation-{generation}"


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write the result of an attempt so that it survives a power cut."""
    _write_durably(folder / RESULT_FILE, outcome.to_json())


def _write_durably(path: Path, data: dict[str, Any]) -> None:
    """Write JSON: the file is synced, renamed, and its folder synced."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w") as file:
        json.dump(data, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_folder(path.parent)


def read_outcome(folder: Path) -> Outcome | None:
    """Return the result written by :func:`write_outcome`, None where the attempt has not ended."""
    try:
        return Outcome.from_json(json.loads((folder / RESULT_FILE).read_text()))
    except FileNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class GangVerdict:
    """What a gang came to, durably: views that come late are told this instead of starting it again.

    ``newest_try`` is the highest try number of the views that looked at it, ``root`` why it ended so.
    """

    generation: int
    newest_try: int
    root: Outcome

    def holds_for(self, generation: int, try_number: int) -> bool:
        """Tell whether a view is told this verdict: it belongs to these attempts, or nothing can be different."""
        return generation == self.generation and (try_number <= self.newest_try or not self.root.cause.may_restart)


def write_verdict(gang_folder: Path, verdict: GangVerdict) -> None:
    """Keep the verdict until the gang begins anew."""
    data = {"generation": verdict.generation, "newest_try": verdict.newest_try, "root": verdict.root.to_json()}
    _write_durably(gang_folder / VERDICT_FILE, data)


def read_verdict(gang_folder: Path) -> GangVerdict | None:
    """Return what the gang came to; None while it runs, or where it never ended."""
    try:
        data = json.loads((gang_folder / VERDICT_FILE).read_text())
    except FileNotFoundError:
        return None
    return GangVerdict(data["generation"], data["newest_try"], Outcome.from_json(data["root"]))


def remove_verdict(gang_folder: Path) -> None:
    """Forget it: the gang begins anew."""
    (gang_folder / VERDICT_FILE).unlink(missing_ok=True)


def last_outcome(folder: Path) -> tuple[int, Outcome] | None:
    """Return number and outcome of the newest attempt below a replica's folder that has a result."""
    for attempt in sorted(folder.glob("attempt-*"), key=attempt_number, reverse=True):
        outcome = read_outcome(attempt)
        if outcome is not None:
            return attempt_number(attempt), outcome
    return None


def attempt_number(folder: Path) -> int:
    """Return the number in the name of an attempt's folder."""
    return int(folder.name.rpartition("-")[2])


def earlier_attempts(folder: Path) -> list[Path]:
    """Return the folders of the attempts before that of ``folder`` in its generation, the first one first."""
    names = (path for path in folder.parent.glob("attempt-*") if path.name.removeprefix("attempt-").isdecimal())
    return sorted((path for path in names if attempt_number(path) < attempt_number(folder)), key=attempt_number)


def read_metrics(folder: Path, *, earlier: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the last reported value of each metric, ``step``, and under ``evaluation`` what an evaluation wrote.

    A metric whose last value is NaN or infinite has none: what it was before it diverged would be taken for its
    result. Unreadable lines are left out: a program is never failed for what it reports.

    :param earlier: folders of attempts that this one goes on from, the first one first: what they have reported counts
        as well.
    """
    found: dict[str, Any] = {}
    for path in (attempt / METRICS_FILE for attempt in (*earlier, folder)):
        if path.exists():
            with path.open(errors="replace") as file:
                for line in file:
                    _take_line(found, line)
    with contextlib.suppress(FileNotFoundError, ValueError):  # only evaluations write it; its reader says what is wrong
        found["evaluation"] = json.loads((folder / EVALUATION_FILE).read_text())
    return found


def _take_line(found: dict[str, Any], line: str) -> None:
    """Let one line's values take the place of earlier ones; a step that is not finite is none, and takes none away."""
    for key, value in _parse_metrics(line).items():
        if is_finite(value):
            found[key] = value
        elif key != "step":
            found.pop(key, None)


def last_step(folder: Path) -> int | None:
    """Return the step that was reported last, from the end of the file: it is asked every few seconds."""
    for line in reversed(file_tail(folder / METRICS_FILE).splitlines()):
        step = _parse_metrics(line).get("step")
        if step is not None and is_finite(step):
            return int(step)
    return None


def _parse_metrics(line: str) -> dict[str, float]:
    """Return the numbers of a line, NaN and infinity among them."""
    values = reported_values(line).items()
    return {key: value for key, value in values if isinstance(value, int | float) and key != "time"}


def reported_values(line: str | bytes) -> dict[str, Any]:
    """Return what a line of the metrics file says, nothing if it is no object: a program may write anything."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


@functools.lru_cache(maxsize=256)
def say_unreadable(text: str) -> None:
    """Log, once in the same words, what a watch passes over: a replica is not ended for a file that nobody can read."""
    log.warning("passed over what cannot be read: %s", text)


def log_tail(folder: Path, lines: int = 20) -> str:
    """Return the last ``lines`` lines of the attempt's output."""
    return file_tail(folder / OUTPUT_FILE, lines)


def output_end(folder: Path) -> str:
    """Return the end of the attempt's output, long enough to hold an error and what was logged before it."""
    return _end_of(folder / OUTPUT_FILE, _END_BYTES)


def file_tail(path: Path, lines: int = 20) -> str:
    """Return the last ``lines`` lines of a file, an empty text where there is none."""
    return "\n".join(_end_of(path, _TAIL_BYTES).splitlines()[-lines:])


def _end_of(path: Path, count: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - count, 0))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def read_refusal(folder: Path) -> str:
    """Return why a replica refused its launch, an empty text where it did not."""
    path = folder / "error.json"
    return str(json.loads(path.read_text())["refused"]) if path.exists() else ""
