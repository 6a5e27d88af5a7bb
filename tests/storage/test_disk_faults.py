"""A real HDFS and a local disk that is full, small or read-only."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_tf.storage.base import FileSystem
from airflow_tf.testing.hdfs import HdfsCluster
from tests.storage.storage_helpers import TAKE_ALL, Staging, on_small_disk

pytestmark = pytest.mark.hdfs

STAGE = """
import json, pathlib, sys
from airflow_tf.core.errors import StorageError
from airflow_tf.storage import client
from airflow_tf.storage.options import StorageOptions

def stage(uri, cache, target):
    try:
        staged = client.stage(uri, options=StorageOptions.from_uri(uri), target=pathlib.Path(target),
                              cache_dir=pathlib.Path(cache), cache_bytes=2**30, on_progress=lambda text: None)
    except StorageError as error:
        return [type(error).__name__, str(error)]
    return ["staged", staged.total_bytes]

def left(*folders):
    return sorted(str(path) for folder in folders for path in pathlib.Path(folder).rglob("*") if path.is_file()
                  and not path.name.endswith(".lock"))
"""


def test_a_disk_that_is_too_small_is_named_before_the_first_byte_and_what_fits_is_staged_then(
    hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, tmp_path: Path
) -> None:
    hdfs.write(f"{folder}/1.csv", [b"x" * 2**20] * 3)
    hdfs.write(f"{folder}/2.csv", [b"y" * 2**20] * 6)
    program = """
disk, uri = sys.argv[1:]
cache, target = f"{disk}/cache", f"{disk}/run/data"
print(json.dumps([stage(uri, cache, target), left(disk), stage(f"{uri}/1.csv", cache, target), len(left(cache))]))
"""
    refused, files, then, cached = on_small_disk(tmp_path, STAGE + program, f"{hdfs_cluster.uri}{folder}")
    assert refused[0] == "StorageNoSpaceError"
    assert "9.0 MiB are needed, 8.0 MiB are free" in refused[1]
    assert files == []
    assert then == ["staged", 3 * 2**20]
    assert cached == 1


@pytest.mark.parametrize("size", [300_000, 30_000])
def test_a_disk_that_fills_up_in_the_middle_ends_the_copy_and_the_next_one_goes_on(
    size: int, hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, tmp_path: Path
) -> None:
    for number in range(20):  # more than are copied at once, so that some get their space later
        hdfs.write(f"{folder}/{number:02}.csv", [b"%02d" % number * (size // 2)])
    program = """
import os
from airflow_tf.storage.base import Uri
from airflow_tf.storage.cache import Cache, boot_id
from airflow_tf.storage.hdfs import HdfsFileSystem
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.storage.staging import Stager

disk, text = sys.argv[1:]
cache, target = f"{disk}/cache", pathlib.Path(disk, "run", "data")
filler = pathlib.Path(disk, "filler")

class Filling(HdfsFileSystem):
    "As soon as a file is read, another program takes all that is free."
    def read(self, path, offset, length):
        take_all(filler)
        yield from super().read(path, offset, length)

uri, options = Uri.parse(text), StorageOptions.from_uri(text)
reporter = Reporter(os.open(os.devnull, os.O_WRONLY))
stager = Stager(uri, options, Filling(uri, options), Cache(pathlib.Path(cache), 2**30, boot_id(), reporter.tick),
                reporter, Patience(20.0, reporter.note))
try:
    stager.run(target)
    first = ["staged", ""]
except StorageError as error:
    first = [type(error).__name__, str(error)]
filler.unlink()
print(json.dumps([first, left(disk + "/run"), left(cache + "/partial"), stage(text, cache, target),
                  left(cache + "/partial"), (target / "07.csv").read_text()[:4]]))
"""
    failed, staged, partial, then, partial_then, content = on_small_disk(
        tmp_path, STAGE + TAKE_ALL + program, f"{hdfs_cluster.uri}{folder}"
    )
    assert failed[0] == "StorageNoSpaceError"
    assert "The disk of " in failed[1]
    assert staged == []
    assert [path for path in partial if not path.endswith(".done")] == []
    assert then == ["staged", 20 * size]
    assert partial_then == []
    assert content == "0707"


def test_a_full_disk_of_the_run_is_told_from_the_one_of_the_cache(
    hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, tmp_path: Path
) -> None:
    hdfs.write(f"{folder}/1.csv", [b"x" * 2**20] * 9)  # the cache holds it, but there is no link to another disk
    program = """
disk, uri, cache = sys.argv[1:]
print(json.dumps([stage(uri, cache, f"{disk}/run/data"), left(disk), len(left(cache))]))
"""
    cache = str(tmp_path / "cache")
    failed, files, cached = on_small_disk(tmp_path, STAGE + program, f"{hdfs_cluster.uri}{folder}", cache)
    assert failed[0] == "StorageNoSpaceError"
    assert f"{tmp_path}/disk/run" in failed[1]
    assert (files, cached) == ([], 1)


@pytest.mark.parametrize("place", ["cache", "run"])
def test_a_read_only_disk_is_named(
    place: str, hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, tmp_path: Path, staging: Staging
) -> None:
    hdfs.write(f"{folder}/1.csv", [b"x" * 1000])
    program = """
import subprocess
disk, uri, cache, target = sys.argv[1:]
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
print(json.dumps(stage(uri, cache, target)))
"""
    folders = {name: str(tmp_path / ("disk" if name == place else "") / name) for name in ("cache", "run")}
    uri = f"{hdfs_cluster.uri}{folder}"
    kind, text = on_small_disk(tmp_path, STAGE + program, uri, folders["cache"], f"{folders['run']}/data")
    assert kind == "StoragePermissionError"
    assert "Read-only file system" in text
    assert folders[place] in text
    assert staging(uri).total_bytes == 1000
    assert staging.partial() == []
