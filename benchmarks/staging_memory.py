"""Peak memory of staging, of the calling process and of the mover: a large file, and very many files.

The large file is read from this disk (where it is sparse) and from HDFS; the many files lie on this disk, in folders of
a thousand. Each is staged once in a fresh process: whole peaks, interpreter included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from harness import Row, arguments, report

from airflow_tf.storage.base import Uri
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.registry import open_file_system
from airflow_tf.testing.hdfs import HdfsCluster

_PROGRAM = Path(__file__).parent / "programs" / "stage_once.py"
_LIMIT_MB = 200.0
_FILES_PER_FOLDER = 1000


def measure(case: str, uri: str, folder: Path, *, files: int, total_bytes: int) -> list[Row]:
    """Stage below ``folder``, check how much came, and return the rows of the two processes."""
    with tempfile.TemporaryDirectory(dir=folder) as target:
        command = [sys.executable, str(_PROGRAM), uri, target]
        found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    if (found["files"], found["bytes"]) != (files, total_bytes):
        raise SystemExit(f"{case}: {found} were staged instead of {files} files, {total_bytes} bytes")
    return [
        Row(case, f"MB RSS of the {process}", found[process] / 1024, _LIMIT_MB, "limit", "ratio <= 1.0")
        for process in ("caller", "mover")
    ]


def large_file(folder: Path, size: int) -> list[Row]:
    """Measure a sparse file of this disk."""
    source = folder / "large"
    source.mkdir()
    with (source / "file").open("wb") as file:
        file.truncate(size)
    return measure(f"{_gib(size)} file, local", source.as_uri(), folder, files=1, total_bytes=size)


def large_file_on_hdfs(cluster: HdfsCluster, folder: Path, size: int) -> list[Row]:
    """Measure a file on HDFS, with one replica."""
    uri = f"{cluster.uri}/large"
    files = open_file_system(Uri.parse(uri), replace(StorageOptions.from_uri(uri), replication=1))
    piece = os.urandom(1 << 20)

    def pieces() -> Iterator[bytes]:
        for _ in range(size // len(piece)):
            yield piece

    files.make_dirs("/large")
    files.write("/large/file", pieces())
    return measure(f"{_gib(size)} file, HDFS", uri, folder, files=1, total_bytes=size)


def many_files(folder: Path, count: int) -> list[Row]:
    """Measure files of some bytes each."""
    source = folder / "many"
    for start in range(0, count, _FILES_PER_FOLDER):
        part = source / f"part={start // _FILES_PER_FOLDER:03}"
        part.mkdir(parents=True)
        for number in range(start, min(count, start + _FILES_PER_FOLDER)):
            (part / f"rows-{number:06}.csv").write_bytes(b"%016d" % number)
    return measure(f"{count} files", source.as_uri(), folder, files=count, total_bytes=16 * count)


def _gib(size: int) -> str:
    return f"{size / 2**30:g} GiB"


def main() -> None:
    """Measure and print."""
    chosen = arguments(__doc__ or "")
    size, count = (1 << 30, 10_000) if chosen.quick else (10 << 30, 100_000)
    with HdfsCluster(blocksize_bytes=128 << 20) as cluster, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [
            *large_file(folder, size),
            *large_file_on_hdfs(cluster, folder, size),
            *many_files(folder, count),
        ]
    report(rows, chosen.json)


if __name__ == "__main__":
    main()
