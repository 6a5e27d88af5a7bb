"""What programs write for TensorBoard becomes their reported steps and metrics, without a line of theirs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from airflow_tf.core.checkpoint.wire import MalformedError
from airflow_tf.core.event_files import Scalar, read_scalars
from airflow_tf.core.launch import METRICS_FILE
from airflow_tf.supervisor.results import earlier_attempts

log = logging.getLogger(__name__)

OFFSETS_FILE = "events.json"
"""How far each event file was read: a supervisor that is started again goes on from there."""

_UNREADABLE = -1
_LOCK = threading.Lock()  # a look at what runs may not have ended when the end is judged


def collect_events(run_folder: Path, checkpoint_folder: Path) -> None:
    """Append what event files below both folders have gained to the run folder's metrics.

    A series is named as TensorBoard shows it: the folder of its file, if it has one, and the tag.
    """
    with _LOCK:
        files = dict(_event_files(run_folder)) | dict(_event_files(checkpoint_folder))
        if not files:
            return
        state = run_folder / OFFSETS_FILE
        offsets = _offsets(run_folder)
        before = dict(offsets)
        lines = [line for path, prefix in sorted(files.items()) for line in _lines(_gained(path, offsets), prefix)]
        if offsets == before:
            return
        with (run_folder / METRICS_FILE).open("a") as metrics:
            metrics.writelines(lines)
        part = state.with_suffix(".part")
        part.write_text(json.dumps(offsets))
        part.replace(state)


def _offsets(run_folder: Path) -> dict[str, int]:
    """Return how far each file was read by this attempt or the ones before: what those have reported is not its own."""
    for attempt in (run_folder, *reversed(earlier_attempts(run_folder))):
        if (attempt / OFFSETS_FILE).exists():
            return dict(json.loads((attempt / OFFSETS_FILE).read_text()))
    return {}


def _event_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield each event file below ``folder`` with the prefix of its series."""
    for parent, _, names in os.walk(folder):  # unlike Path.rglob it passes over folders that vanish
        for name in names:
            if ".tfevents." in name:
                prefix = Path(parent).relative_to(folder).as_posix()
                yield Path(parent, name), "" if prefix == "." else f"{prefix}/"


def _gained(path: Path, offsets: dict[str, int]) -> list[Scalar]:
    """Read what a file has gained; one that is damaged is left alone from then on, which is said once."""
    name = str(path)
    offset = offsets.get(name, 0)
    if offset == _UNREADABLE:
        return []
    scalars: list[Scalar] = []
    with contextlib.suppress(FileNotFoundError):  # the program may remove it meanwhile
        try:
            scalars, offsets[name] = read_scalars(path, offset)
        except MalformedError as error:
            offsets[name] = _UNREADABLE
            log.warning("%s is not read any further: %s", path, error)
    return scalars


def _lines(scalars: list[Scalar], prefix: str) -> Iterator[str]:
    for wall_time, step, tag, value in scalars:
        yield json.dumps({"step": step, "time": wall_time, f"{prefix}{tag}": value}) + "\n"
