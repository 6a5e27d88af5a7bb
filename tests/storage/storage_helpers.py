"""What the tests of storage share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from airflow_tf.core.manifest import StagedInput
from airflow_tf.storage import client
from airflow_tf.storage.options import StorageOptions

SESSION = "AIRFLOW_TF_TEST_SESSION"  # set by tests/conftest.py, inherited by every process of the session


def task_context() -> Any:
    """Return what of Airflow's context a staging task asks for."""
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="stage", map_index=-1, xcom_push=lambda **_: None)
    return {"ti": ti}


def movers() -> list[psutil.Process]:
    """Return the movers of this test session, orphans included."""
    return [process for process in psutil.process_iter() if _is_our_mover(process)]


def _is_our_mover(process: psutil.Process) -> bool:
    try:
        is_mover = "airflow_tf.storage.mover" in process.cmdline()
        return is_mover and process.environ().get(SESSION) == os.environ[SESSION]
    except psutil.Error:
        return False  # gone, or of another user


def eventually(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.01)
    return value


SMALL_DISK_BYTES = 8 * 2**20

TAKE_ALL = """
def take_all(filler):  # as another program would that takes all that is free
    with filler.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
"""
"""For a program on a small disk."""


def on_small_disk(tmp_path: Path, program: str, *arguments: str) -> Any:
    """Run a program with a tmpfs of 8 MiB at ``tmp_path/disk`` that only it sees; return what it prints as JSON.

    Linux lets every user make one in a mount namespace of its own, unless the administrator forbids it.
    """
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = f'mount -t tmpfs -o size={SMALL_DISK_BYTES} none "$0" && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", mounted, str(disk), sys.executable, "-c", program]
    done = subprocess.run([*command, str(disk), *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Staging:
    """Stages into one private cache, and keeps what the log would show."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache_dir = folder / "cache"
        self.lines: list[str] = []

    def __call__(self, uri: str, run: str = "run", **changes: Any) -> StagedInput:
        arguments: dict[str, Any] = {
            "options": StorageOptions.from_uri(uri),
            "target": self.folder / run / "data",
            "cache_dir": self.cache_dir,
            "cache_bytes": 2**30,
            "on_progress": self.lines.append,
            "stall_seconds": 20.0,
        }
        return client.stage(uri, **(arguments | changes))

    def cached(self) -> list[Path]:
        return [path for path in (self.cache_dir / "entries").rglob("*") if path.is_file()]

    def partial(self) -> list[Path]:
        return list((self.cache_dir / "partial").glob("*"))
