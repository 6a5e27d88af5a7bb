"""Find a gang's own processes by command and folder."""

from __future__ import annotations

from pathlib import Path

import psutil


def supervisor_of(folder: Path) -> int | None:
    """Pid of the supervisor of the gang in ``folder``."""
    return _find(folder, "airflow_tf.supervisor")


def zygote_of(folder: Path) -> int | None:
    """Pid of the gang's zygote, not of its forks."""
    return _find(folder, "bootstrap.py", "zygote")


def _find(folder: Path, *words: str) -> int | None:
    found = []
    for process in psutil.process_iter():
        try:
            command, environment = " ".join(process.cmdline()), process.environ()
        except psutil.Error:
            continue
        if all(word in command for word in words) and environment.get("AIRFLOW_TF_RUN_FOLDER") == str(folder):
            found.append((process.create_time(), process.pid))
    return min(found)[1] if found else None
