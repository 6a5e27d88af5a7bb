"""Metrics of a replica as points of curves, read only as far as a page does not have them yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_tf.core.launch import METRICS_FILE
from airflow_tf.core.units import is_finite
from airflow_tf.supervisor.results import attempt_number, reported_values
from airflow_tf.web.models import Curve

READ_BYTES = 1 << 20
"""Most of a file that one request reads."""
LAUNCH_FILE = "launch.json"
_BLOCK_BYTES = 1 << 14
_MAX_SERIES = 64
_NOT_A_SERIES = frozenset({"step", "time"})

Points = dict[str, list[tuple[int, float]]]


@dataclass(frozen=True, slots=True)
class Cursor:
    """Up to where a page has a replica's metrics: generation, attempt, bytes of its file."""

    generation: int = 0
    attempt: int = 0
    offset: int = 0

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read what ``str`` of a cursor gave; anything else is the beginning."""
        parts = text.split(".")
        if len(parts) == 3 and all(part.isdecimal() and len(part) < 19 for part in parts):  # noqa: PLR2004 (fields)
            return cls(*map(int, parts))
        return cls()

    def __str__(self) -> str:
        return f"{self.generation}.{self.attempt}.{self.offset}"


def read_curve(folder: Path, replica: int, generation: int, cursor: Cursor) -> Curve:
    """Return what the attempts of a replica's generation have reported behind ``cursor``.

    A file that is longer than ``READ_BYTES`` is seen for the first time by blocks spread over it, so that the page of
    a run of days opens at once; from then on every line is read.

    :param folder: folder of the generation, with one folder per attempt.
    """
    is_new = cursor.generation != generation
    start = Cursor(generation) if is_new else cursor
    attempts = [number for number in _attempts(folder) if number >= start.attempt]
    points: Points = {}
    for number in attempts:
        begin = start.offset if number == start.attempt else 0
        path = folder / f"attempt-{number}" / METRICS_FILE
        size = path.stat().st_size if path.exists() else 0
        if size - begin > READ_BYTES and begin == 0:
            lines, end = _overview(path, size)
        else:
            lines, end = _lines(path, begin, READ_BYTES) if size > begin else ([], begin)
        _collect(lines, points)
        start = Cursor(generation, number, end)
        if end > begin and end < size and size - end > _BLOCK_BYTES:
            return Curve(replica=replica, cursor=str(start), is_new=is_new, has_more=True, points=points)
    return Curve(replica=replica, cursor=str(start), is_new=is_new, has_more=False, points=points)


def step_rate(folder: Path) -> float | None:
    """Return steps per second of an attempt, None while that is unknown.

    They are those of its last lines where these have a time, else the mean since it was started.
    """
    path, started = folder / METRICS_FILE, folder / LAUNCH_FILE
    try:
        stat, since = path.stat(), started.stat().st_mtime
        rows = [
            row
            for row in map(_parse, _lines(path, max(stat.st_size - _BLOCK_BYTES, 0), _BLOCK_BYTES)[0])
            if "step" in row
        ]
        first = [row for row in map(_parse, _lines(path, 0, _BLOCK_BYTES)[0]) if "step" in row]
    except OSError:  # nothing reported yet
        return None
    timed = [row for row in rows if "time" in row]
    if len(timed) > 1:
        return _quotient(timed[-1]["step"] - timed[0]["step"], timed[-1]["time"] - timed[0]["time"])
    return _quotient(rows[-1]["step"] - first[0]["step"], stat.st_mtime - since) if rows and first else None


def _quotient(steps: float, seconds: float) -> float | None:
    return _finite(steps / seconds) if steps > 0 and seconds > 0 else None


def _attempts(folder: Path) -> list[int]:
    return sorted(attempt_number(path) for path in folder.glob("attempt-*"))


def _lines(path: Path, begin: int, count: int) -> tuple[list[bytes], int]:
    """Return the whole lines within ``count`` bytes behind ``begin``, and where they end."""
    with path.open("rb") as file:
        file.seek(begin)
        data = file.read(count)
    end = data.rfind(b"\n") + 1
    if not end and len(data) == count:  # one endless line: no metrics
        return [], begin + count
    return data[:end].splitlines(), begin + end


def _overview(path: Path, size: int) -> tuple[list[bytes], int]:
    """Return whole lines from blocks spread evenly over a file, and where the last one ends."""
    blocks = READ_BYTES // _BLOCK_BYTES
    found: list[bytes] = []
    end = 0
    for number in range(blocks):
        begin = number * (size - _BLOCK_BYTES) // (blocks - 1)
        lines, end = _lines(path, begin, _BLOCK_BYTES)
        found += lines[1:] if begin else lines  # the first one begins somewhere in its middle
    return found, end


def _collect(lines: list[bytes], points: Points) -> None:
    for row in map(_parse, lines):
        if "step" in row:
            for name, value in _series(row):
                if name in points or len(points) < _MAX_SERIES:
                    points.setdefault(name, []).append((int(row["step"]), value))


def _series(row: dict[str, float]) -> Iterator[tuple[str, float]]:
    return ((name, value) for name, value in row.items() if name not in _NOT_A_SERIES)


def _parse(line: bytes) -> dict[str, float]:
    """Return the finite numbers of a line."""
    numbers = ((name, _finite(value)) for name, value in reported_values(line).items())
    return {name: number for name, number in numbers if number is not None}


def _finite(value: object) -> float | None:
    """Return what is a finite number, None for all else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if is_finite(value) else None
