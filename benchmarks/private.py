"""What benchmarks of running parts share: a private folder that no process outlives, and the Airflow of the tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

sys.path.append(str(Path(__file__).resolve().parents[1]))  # a script's path begins with its own folder: add the clone

from tests.airflow.home import AirflowHome
from tests.airflow.running import RunningAirflow

PROGRAMS = Path(__file__).resolve().parent / "programs"
LEFT_DEADLINE_SECONDS = 30.0


@contextmanager
def private_folder(topic: str) -> Iterator[Path]:
    """Make a folder, and remove it with every process whose environment names it.

    :raises RuntimeError: if such a process lives on although the benchmark went well.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{topic}-"))
    try:
        yield folder
        deadline = time.monotonic() + LEFT_DEADLINE_SECONDS
        while (left := processes_of(folder)) and time.monotonic() < deadline:
            time.sleep(0.2)
        if left:
            raise RuntimeError(f"processes left behind: {list(left.values())}")
    finally:
        for process in processes_of(folder):
            with contextlib.suppress(psutil.NoSuchProcess):  # it went meanwhile
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: Path) -> dict[psutil.Process, str]:
    """Return the processes, other than this one, whose environment names a folder, and their commands."""
    found = {}
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(str(folder) in value for value in process.environ().values()):
                found[process] = " ".join(process.cmdline())
        except psutil.Error:  # it went meanwhile, or is another user's
            continue
    return found


@contextmanager
def running_airflow(folder: Path, dags: Mapping[str, str], cpu_slots: int) -> Iterator[RunningAirflow]:
    """Start an Airflow of its own with these DAG files, name -> text, and stop it."""
    home = AirflowHome(folder, store="", cpu_slots=cpu_slots)
    home.dags.mkdir()
    (folder / "locks").mkdir()
    for name, text in dags.items():
        (home.dags / name).write_text(text)
    home.run("db", "migrate")
    airflow = RunningAirflow(home)
    try:
        airflow.start()
        yield airflow
    finally:
        airflow.stop()
