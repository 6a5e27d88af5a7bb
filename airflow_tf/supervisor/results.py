"""Durable results of attempts, and what is read back from an attempt's folder."""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any

from airflow_tf.core.durable import sync_folder
from airflow_tf.core.launch import EVALUATION_FILE, METRICS_FILE
from airflow_tf.core.ledger import Outcome

RESULT_FILE = "result.json"
OUTPUT_FILE = "output.log"
_TAIL_BYTES = 16 * 1024


def replica_folder(gang_folder: Path, replica: int, generation: int) -> Path:
    """Folder of one generation of a replica: its checkpoints and its attempts."""
    return gang_folder / f"replica-{replica}" / f"generation-{generation}"


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write the result so that it survives a power cut: the file is synced, renamed, and its folder synced."""
    temporary = folder / f"{RESULT_FILE}.tmp"
    with temporary.open("w") as file:
        json.dump(outcome.to_json(), file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / RESULT_FILE)
    sync_folder(folder)


def read_outcome(folder: Path) -> Outcome | None:
    """Return the result written by :func:`write_outcome`, None where the attempt has not ended."""
    try:
        return Outcome.from_json(json.loads((folder / RESULT_FILE).read_text()))
    except FileNotFoundError:
        return None


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


def read_metrics(folder: Path) -> dict[str, Any]:
    """Return the last reported value of each metric, ``step``, and under ``evaluation`` what an evaluation wrote.

    Unreadable lines and NaN are left out: a program is never failed for what it reports.
    """
    found: dict[str, Any] = {}
    with contextlib.suppress(FileNotFoundError, ValueError):  # only evaluations write it; its reader says what is wrong
        found["evaluation"] = json.loads((folder / EVALUATION_FILE).read_text())
    path = folder / METRICS_FILE
    if not path.exists():
        return found
    with path.open(errors="replace") as file:
        for line in file:
            found |= _parse_metrics(line)
    return found


def last_step(folder: Path) -> int | None:
    """Return the step that was reported last, from the end of the file: it is asked every few seconds."""
    for line in reversed(file_tail(folder / METRICS_FILE).splitlines()):
        step = _parse_metrics(line).get("step")
        if step is not None:
            return int(step)
    return None


def _parse_metrics(line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError:
        return {}
    if not isinstance(data, dict):
        return {}
    numbers = {key: value for key, value in data.items() if isinstance(value, int | float) and key != "time"}
    return {key: value for key, value in numbers.items() if math.isfinite(value)}


def log_tail(folder: Path, lines: int = 20) -> str:
    """Return the last ``lines`` lines of the attempt's output."""
    return file_tail(folder / OUTPUT_FILE, lines)


def file_tail(path: Path, lines: int = 20) -> str:
    """Return the last ``lines`` lines of a file, an empty text where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - _TAIL_BYTES, 0))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def read_refusal(folder: Path) -> str:
    """Return why a replica refused its launch, an empty text where it did not."""
    path = folder / "error.json"
    return str(json.loads(path.read_text())["refused"]) if path.exists() else ""
