"""The placement report of an attempt: written beside its output when it has ended."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from airflow_tf.core.launch import KERNELS_FILE, PARTITIONS_FILE, ReplicaLaunch
from airflow_tf.core.placement import placement_report, read_partitions, read_placement
from airflow_tf.supervisor.output import hole_end, say
from airflow_tf.supervisor.results import OUTPUT_FILE

PLACEMENT_FILE = "placement.json"
_READ_BYTES = 64 * 2**20
"""Operations are placed when they first run: a program that writes for days is not read whole."""

log = logging.getLogger(__name__)


def write_placement(launch: ReplicaLaunch) -> None:
    """Write what ``log_device_placement`` said as ``placement.json``, and its counts into the output.

    Nothing is written where it was not asked for, or nothing was placed. A report that cannot be written does not
    change how the attempt ended.
    """
    if not launch.session_config.get("log_device_placement"):
        return
    folder = Path(launch.folder)
    output = folder / OUTPUT_FILE
    try:
        with output.open("rb") as file:
            file.seek(hole_end(output))
            text = file.read(_READ_BYTES).decode(errors="replace")
        ran, transfers = read_partitions(_lines(folder / PARTITIONS_FILE))
        operations = [*read_placement(text.splitlines()), *ran]
        if operations:
            report = placement_report(
                operations, has_gpu=launch.has_gpu, kernels=_kernels(folder / KERNELS_FILE), transfers=transfers
            )
            (folder / PLACEMENT_FILE).write_text(json.dumps(report, indent=1))
            (folder / KERNELS_FILE).unlink(missing_ok=True)
            say(output, f"placement of {len(report['operations'])} operations: {_summary(report)}")
    except OSError as error:
        log.warning("no placement report in %s: %s", folder, error)


def _lines(file: Path) -> Iterable[str]:
    try:
        with file.open(errors="replace") as lines:
            return lines.readlines(_READ_BYTES)
    except FileNotFoundError:  # no session was run
        return []


def _kernels(file: Path) -> Any:  # noqa: ANN401 (as the replica wrote it)
    try:
        return json.loads(file.read_text())
    except (FileNotFoundError, ValueError):  # it has no GPU, or was killed while it wrote
        return None


def _summary(report: dict[str, Any]) -> str:
    counts = ", ".join(f"{count} on {device}" for device, count in report["counts"].items())
    left = f"; {len(report['on_cpu'])} fell to the CPU" if report["on_cpu"] else ""
    moved = sum(report["transfers"].values())
    moves = f"; {moved} tensors move between devices" if moved else ""
    return f"{counts}{left}{moves}; all of it is in {PLACEMENT_FILE}"
