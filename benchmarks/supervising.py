"""What a gang's supervisor costs: its memory, its CPU time, and how long a replica takes to start from a warm zygote.

Without Airflow: views attach as a task's do. Two references stand beside it. For memory and CPU time it is the least
that any supervisor in Python needs: an interpreter with asyncio and SQLAlchemy that looks for its children once a
second. For the start it is the same program in an interpreter of its own.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from harness import SHOWN, Row, arguments, report
from private import PROGRAMS, private_folder

from airflow_tf.core.settings import Settings
from airflow_tf.supervisor.client import Channel, GangClient
from tests.supervisor.harness import Gang, Watch, wait_for

STARTS = 7
REPLICAS = 4
SETTLE_SECONDS = 3.0
MB = 1e6
STAGES = {
    "seconds from attach to the program's first line": "ours <= 0.3",
    "seconds from attach until TensorFlow is imported": SHOWN,
}
LOADS = {"MB RSS": "ours <= 60", "MB of its own (USS)": SHOWN, "percent of a core": "ours <= 1"}
FLOOR = """
import asyncio, sqlalchemy.orm, psutil
async def main():
    while True:
        psutil.Process().children()
        await asyncio.sleep(1)
asyncio.run(main())
"""
QUIET = """
import os, time
from pathlib import Path
from airflow_tf.runtime import context
run, finish, step = context(), Path(os.environ["BENCH_MARKS"], "finish"), 0
Path(os.environ["BENCH_MARKS"], f"trains-{run.replica}").touch()
while not finish.exists():
    step += 1
    run.report(step, loss=1.0 / step)
    if step % 10 == 0:
        print("step", step, flush=True)
    time.sleep(0.1)
"""
IDLE = QUIET.replace("    run.report(step, loss=1.0 / step)\n", "").replace("step % 10 == 0", "False")


class TimedClient(GangClient):
    """Remembers when a view began to attach."""

    began = 0.0

    def connect(self, deadline_seconds: float = 30.0) -> Channel:
        """Connect as a view does."""
        self.began = time.time()
        return super().connect(deadline_seconds)


class TimedGang(Gang):
    """A gang of replicas that live each for itself; all of its files are in one folder."""

    def __init__(self, folder: Path, count: int, start_method: str = "zygote") -> None:
        for name in ("home", "locks", "marks"):
            (folder / name).mkdir(parents=True)
        home = folder / "home"
        settings = Settings(home, f"sqlite:///{home / 'ledger.db'}", folder / "locks", cpu_slots=count)
        super().__init__(settings, folder, count=count, start_method=start_method)
        self.marks = folder / "marks"
        self.timed = TimedClient(self._launch)
        self.client = self.timed

    def begin(self, script: str, replica: int, **fields: Any) -> Watch:
        """Start a replica that knows where to leave its marks."""
        return self.start(script, replica=replica, environment={"BENCH_MARKS": str(self.marks)}, **fields)

    def finish(self, watches: list[Watch]) -> None:
        """Let all replicas end, and their supervisor with them."""
        (self.marks / "finish").touch()
        for watch in watches:
            watch.end()
        if not self.client.wait_gone(60):
            raise RuntimeError("the supervisor does not end")

    def supervisor(self) -> psutil.Process:
        """Return the supervisor's process."""
        pid = self.supervisor_pid()
        assert pid is not None
        return psutil.Process(pid)


def start_rows(folder: Path, starts: int = STARTS) -> list[Row]:
    """Start replicas one after the other from a zygote that the first of them has warmed."""
    gang = TimedGang(folder, starts + 1)
    watches = [gang.begin(IDLE, 0)]
    wait_for((gang.marks / "trains-0").exists, "the first replica", 120)
    script = (PROGRAMS / "first_line.py").read_text()
    ours, theirs = [], []
    for number in range(1, starts + 1):
        mark = gang.marks / f"start-{number}"
        began = time.time()
        subprocess.run(
            [sys.executable, PROGRAMS / "first_line.py"], env=_named(mark), check=True, stderr=subprocess.DEVNULL
        )
        theirs.append([when - began for when in _times(mark)])
        mark.unlink()
        watches.append(gang.begin(script, number))
        wait_for(lambda: mark.exists() and len(_times(mark)) == len(STAGES), "a start")  # noqa: B023 (called in this turn)
        ours.append([when - gang.timed.began for when in _times(mark)])
    gang.finish(watches)
    medians = [[statistics.median(column) for column in zip(*runs, strict=True)] for runs in (ours, theirs)]
    return [
        Row("start, warm zygote", figure, mine, reference, "an own interpreter", target)
        for (figure, target), mine, reference in zip(STAGES.items(), *medians, strict=True)
    ]


def _named(mark: Path) -> dict[str, str]:
    return os.environ | {"BENCH_MARKS": str(mark.parent), "AIRFLOW_TF_REPLICA": mark.name.rpartition("-")[2]}


def _times(mark: Path) -> list[float]:
    return [float(line) for line in mark.read_text().splitlines()]


def load_rows(
    folder: Path, case: str, script: str, count: int, seconds: float, start_method: str = "zygote"
) -> list[Row]:
    """Look at a supervisor and at the reference over the same time."""
    gang = TimedGang(folder, count, start_method)
    watches = [gang.begin(script, number) for number in range(count)]
    for number in range(count):
        wait_for((gang.marks / f"trains-{number}").exists, "training", 120)
    with _floor() as floor:
        ours, theirs = _looks([gang.supervisor(), floor], seconds)
    gang.finish(watches)
    return [
        Row(case, figure, ours[figure], theirs[figure], "asyncio and SQLAlchemy alone", target)
        for figure, target in LOADS.items()
    ]


@contextmanager
def _floor() -> Iterator[psutil.Process]:
    process = subprocess.Popen([sys.executable, "-c", FLOOR])
    try:
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


def _looks(processes: list[psutil.Process], seconds: float) -> list[dict[str, float]]:
    """Return the figures of processes, once they have settled, over the same time."""
    time.sleep(SETTLE_SECONDS)
    before = [_cpu_seconds(process) for process in processes]
    time.sleep(seconds)
    return [
        {"percent of a core": 100 * (_cpu_seconds(process) - used) / seconds} | _memory(process)
        for process, used in zip(processes, before, strict=True)
    ]


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _memory(process: psutil.Process) -> dict[str, float]:
    memory = process.memory_full_info()
    return {"MB RSS": memory.rss / MB, "MB of its own (USS)": memory.uss / MB}


def main() -> None:
    """Measure starts and both loads, and print the table."""
    options = arguments("Cost of a supervisor, and start from a warm zygote")
    seconds = 15.0 if options.quick else 60.0
    with private_folder("supervising") as folder:
        rows = start_rows(folder / "starts")
        for case, script, count in (("idle", IDLE, 1), (f"{REPLICAS} replicas train", QUIET, REPLICAS)):
            rows += load_rows(folder / str(count), case, script, count, seconds)
    report(rows, options.json)


if __name__ == "__main__":
    main()
