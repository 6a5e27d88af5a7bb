"""Staging from HDFS beside every other client: the same cluster, the same files, in turn, wall time from process start.

All bytes are compared afterwards, outside the measured time. The cluster's DataNodes run on the same processors.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from copy_from_hdfs import stage_into
from harness import SHOWN, Row, arguments, report

from airflow_tf.storage import client
from airflow_tf.storage.base import Uri
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.registry import open_file_system
from airflow_tf.testing.hadoop import fetch_jars
from airflow_tf.testing.hdfs import HdfsCluster

_PROGRAM = Path(__file__).parent / "copy_from_hdfs.py"
_CLIENTS = ("ours", "native", "fsspec", "hdfscli", "webhdfs_hook")
_NAMES = {
    "native": "hdfs-native",
    "fsspec": "fsspec",
    "hdfscli": "HdfsCLI",
    "webhdfs_hook": "WebHDFSHook",
    "fs_shell": "FsShell -get",
    "rclone": "rclone copy",
}
_TIMES = 5
_MANY = 200  # files
_SLOW = {"webhdfs_hook", "fs_shell"}  # once: they are far from the fastest


@dataclass(frozen=True)
class Case:
    """Some files of one size, in so many folders."""

    name: str
    files: int
    bytes: int
    folders: int
    target: str


@dataclass
class Measured:
    """What the runs of one client took."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)

    def median(self, figure: str) -> float:
        """Return the median of a figure."""
        values: list[float] = getattr(self, figure)
        return statistics.median(values)


def cases(*, quick: bool) -> list[Case]:
    """Return what is copied."""
    mib, count = (16, 200) if quick else (128, 2000)
    return [
        Case("one large file", 1, 8 * mib << 20, 1, "ratio <= 1.0"),
        Case("8 large files", 8, mib << 20, 1, "ratio <= 1.0"),
        Case(f"{count} files of 16 KiB in 20 folders", count, 16 << 10, 20, "ratio <= 0.714"),
    ]


class Bench:
    """One running cluster, and the same files on this host for the comparison."""

    def __init__(self, cluster: HdfsCluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder

    def fill(self, case: Case, number: int) -> tuple[str, Path]:
        """Write the files of a case; return their URI and the folder of their local twins."""
        uri, local = f"{self._cluster.uri}/case{number}", self._folder / f"case{number}"
        files = open_file_system(Uri.parse(uri), StorageOptions.from_uri(uri))
        block = os.urandom(min(case.bytes, 1 << 20))
        for index in range(case.files):
            name = f"folder-{index % case.folders:02}/part-{index:05}"
            (local / name).parent.mkdir(parents=True, exist_ok=True)
            files.make_dirs(f"/case{number}/{name.partition('/')[0]}")
            data = [block] * max(1, case.bytes // len(block))
            files.write(f"/case{number}/{name}", data)
            with (local / name).open("wb") as file:
                file.writelines(data)
        return uri, local

    def command(self, program: str, uri: str, local: Path, target: Path) -> list[str] | None:
        """Return the command of a client; None where it is not installed."""
        if program == "cp":
            return ["cp", "-r", "--reflink=never", str(local), str(target / "data")]
        if program == "rclone":
            root = uri.removeprefix(f"{self._cluster.uri}/")
            where = f":hdfs,namenode='{self._cluster.uri.removeprefix('hdfs://')}',username=root:{root}"
            return ["rclone", "copy", where, str(target / "data")] if shutil.which("rclone") else None
        if program == "fs_shell":
            classpath = f"{self._cluster.folder / 'conf'}:{fetch_jars()}/*"
            return ["java", "-cp", classpath, "org.apache.hadoop.fs.FsShell", "-get", uri, str(target / "data")]
        return [sys.executable, str(_PROGRAM), program, uri, self._cluster.webhdfs_url, str(target)]

    def run(self, program: str, uri: str, local: Path) -> Measured | None:
        """Copy once and compare the bytes."""
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            command = self.command(program, uri, local, Path(name))
            if command is None:
                return None
            started = time.monotonic()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            assert process.stderr
            errors = process.stderr.read()
            _, status, used = os.wait4(process.pid, 0)
            seconds = time.monotonic() - started
            if status:
                raise SystemExit(f"{program} failed: {errors.decode(errors='replace')[-2000:]}")
            _compare(local, Path(name))
        return Measured([seconds], [used.ru_utime + used.ru_stime], [used.ru_maxrss / 1024])


def _compare(local: Path, target: Path) -> None:
    """Compare every file with the first file of its name that the client has written."""
    written = {path.name: path for path in target.rglob("part-*")}
    for path in local.rglob("part-*"):
        if not filecmp.cmp(path, written[path.name], shallow=False):
            raise SystemExit(f"{path} was not copied as it is")


def measure(bench: Bench, case: Case, number: int, *, rounds: int) -> list[Row]:
    """Copy in turn with all clients and return the rows of one case."""
    uri, local = bench.fill(case, number)
    found: dict[str, Measured] = {}
    missing: set[str] = set()
    for turn in range(rounds):
        for program in ("cp", "rclone", "fs_shell", *_CLIENTS):
            if (turn and program in _SLOW) or program in missing:
                continue
            once = bench.run(program, uri, local)
            if once is None:
                missing.add(program)
                continue
            all_runs = found.setdefault(program, Measured())
            all_runs.seconds += once.seconds
            all_runs.cpu_seconds += once.cpu_seconds
            all_runs.rss_mb += once.rss_mb
    mine = found["ours"]
    peers = {name: found[name] for name in _NAMES if name in found}
    fastest = min(peers, key=lambda name: peers[name].median("seconds"))
    seconds = mine.median("seconds")
    rows = [
        Row(case.name, "seconds", seconds, peers[fastest].median("seconds"), f"fastest: {_NAMES[fastest]}", case.target)
    ]
    for program, name in _NAMES.items():
        other = peers[program].median("seconds") if program in peers else None
        rows.append(Row(case.name, "seconds", seconds, other, name, SHOWN))
    rows.append(Row(case.name, "seconds", seconds, found["cp"].median("seconds"), "cp, the limit", SHOWN))
    cpu = peers[fastest].median("cpu_seconds")
    rows.append(Row(case.name, "CPU seconds", mine.median("cpu_seconds"), cpu, _NAMES[fastest], SHOWN))
    rows.append(Row(case.name, "MB RSS", mine.median("rss_mb"), 200.0, "limit", "ratio <= 1.0"))
    return [*rows, *_again(bench, case, uri, seconds)]


def _again(bench: Bench, case: Case, uri: str, seconds: float) -> list[Row]:
    """Stage the unchanged files for further runs: from the call to its return, the mover's start included."""
    with tempfile.TemporaryDirectory() as name:
        folder, taken = Path(name), []
        stage_into(uri, folder / "first" / "data", folder / "cache")
        for number in range(_TIMES):
            started = time.monotonic()
            if stage_into(uri, folder / str(number) / "data", folder / "cache"):
                raise SystemExit("an unchanged file was copied again")
            taken.append(time.monotonic() - started)
        rclone = _unchanged_by_rclone(bench, uri, folder)
    mine = statistics.median(taken)
    options = StorageOptions.from_uri(uri)
    asked = statistics.median(_seconds(lambda: client.probe(uri, options=options)) for _ in range(_TIMES))
    figure = "seconds, unchanged"
    rows = [
        Row(case.name, figure, mine, seconds, "first copy", "ratio <= 0.02"),
        Row(case.name, figure, mine, rclone, _NAMES["rclone"], "ratio <= 1.0" if case.files < _MANY else SHOWN),
        Row(case.name, figure, mine, asked, "a mover that asks for one path", SHOWN),
    ]
    return [*rows, Row(case.name, figure, mine, seconds, "first copy", "ours <= 0.5")] if case.files >= _MANY else rows


def _unchanged_by_rclone(bench: Bench, uri: str, folder: Path) -> float | None:
    """Return the median seconds of copying again with rclone; None where it is not installed."""
    command = bench.command("rclone", uri, folder, folder / "rclone")
    if command is None:
        return None
    copy = partial(subprocess.run, command, check=True, stderr=subprocess.DEVNULL)
    copy()
    return statistics.median(_seconds(copy) for _ in range(_TIMES))


def _seconds(action: Callable[[], object]) -> float:
    started = time.monotonic()
    action()
    return time.monotonic() - started


def main() -> None:
    """Measure all cases."""
    chosen = arguments(__doc__ or "")
    rows: list[Row] = []
    with HdfsCluster(blocksize_bytes=128 << 20) as cluster, tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(cases(quick=chosen.quick)):
            rows += measure(Bench(cluster, Path(folder)), case, number, rounds=3 if chosen.quick else 5)
    report(rows, chosen.json)


if __name__ == "__main__":
    main()
