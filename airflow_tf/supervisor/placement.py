"""The placement report of an attempt: written beside its output when it has ended."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.core.placement import placement_report, read_placement
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
        operations = read_placement(text.splitlines())
        if operations:
            report = placement_report(operations, has_gpu=launch.visible_devices != "-1")
            (folder / PLACEMENT_FILE).write_text(json.dumps(report, indent=1))
            counts = ", ".join(f"{count} on {device}" for device, count in report["counts"].items())
            say(output, f"placement of {len(operations)} operations: {counts}; all of them are in {PLACEMENT_FILE}")
    except OSError as error:
        log.warning("no placement report in %s: %s", folder, error)
