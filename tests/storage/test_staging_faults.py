"""Faults of a real HDFS, of its blocks and of the stagers themselves."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from airflow_tf.core.errors import StorageUnavailableError
from airflow_tf.storage.base import FileSystem
from airflow_tf.storage.options import StorageOptions
from airflow_tf.testing.hdfs import HdfsCluster
from tests.storage.storage_helpers import Staging, eventually, movers

pytestmark = pytest.mark.hdfs

DATANODES = ("datanode1", "datanode2")


@pytest.fixture
def resumed(hdfs_cluster: HdfsCluster) -> Iterator[HdfsCluster]:
    """The cluster, whose DataNodes a test may pause."""
    yield hdfs_cluster
    for name in DATANODES:
        hdfs_cluster.resume(name)
    hdfs_cluster.wait_ready()


def base_uri(kind: str, cluster: HdfsCluster) -> str:
    return cluster.uri if kind == "hdfs" else cluster.webhdfs_url.replace("http", "webhdfs")


def journaled(staging: Staging) -> list[str]:
    """Return the lines of finished ranges."""
    return [line for path in staging.partial() if path.suffix for line in path.read_text().splitlines()[1:]]


def flip_a_byte(cluster: HdfsCluster, names: tuple[str, ...]) -> None:
    """Damage the largest block on these DataNodes."""
    for name in names:
        blocks = [path for path in (cluster.folder / "data" / name).rglob("blk_*") if path.suffix != ".meta"]
        with max(blocks, key=lambda path: (path.stat().st_size, path.stat().st_mtime_ns)).open("r+b") as file:
            file.seek(500_000)
            byte = file.read(1)[0]
            file.seek(500_000)
            file.write(bytes([byte ^ 0xFF]))


def test_after_kill_9_in_the_middle_of_a_file_only_what_is_missing_is_copied(
    resumed: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    block = os.urandom(2**25)  # a range; more of them than threads, so that some are left
    hdfs.write(f"{folder}/large.csv", [block] * 12)
    uri = f"{resumed.uri}{folder}"
    failures: list[BaseException] = []

    def first() -> None:
        try:
            staging(uri)
        except StorageUnavailableError as error:
            failures.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    eventually(lambda: journaled(staging))
    for name in DATANODES:
        resumed.pause(name)
    movers()[0].kill()
    thread.join()
    done = len(journaled(staging))
    for name in DATANODES:
        resumed.resume(name)
    assert failures, "all ranges were copied before the kill"
    staged = staging(uri)
    assert 1 <= done < 12
    assert any(f"going on after {done * 2**25} bytes" in line for line in staging.lines)
    crc32c = 0
    with (Path(staged.folder) / "large.csv").open("rb") as copy:
        for _ in range(12):
            data = copy.read(len(block))
            assert data == block
            crc32c = google_crc32c.extend(crc32c, data)
    assert (staged.files[0].crc32c, staged.files[0].size) == (crc32c, 12 * len(block))
    assert staging.partial() == []


@pytest.mark.parametrize("kind", ["hdfs", "webhdfs"])
def test_a_datanode_that_is_stopped_in_the_middle_is_avoided(
    kind: str, resumed: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    data = os.urandom(2**20) * 40
    hdfs.write(f"{folder}/1.csv", [data])
    for name in DATANODES:
        resumed.pause(name)
    staged: list[Any] = []
    thread = threading.Thread(
        target=lambda: staged.append(staging(f"{base_uri(kind, resumed)}{folder}", stall_seconds=150.0))
    )
    thread.start()
    eventually(staging.partial)
    resumed.resume("datanode2")
    thread.join()
    assert (Path(staged[0].folder) / "1.csv").read_bytes() == data


@pytest.mark.parametrize("kind", ["hdfs", "webhdfs"])
def test_one_damaged_replica_of_a_block_is_survived_and_all_of_them_are_an_error(
    kind: str, hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    data = os.urandom(8 * 2**20)  # one full block, the largest there may be
    hdfs.write(f"{folder}/1.csv", [data])
    uri = f"{base_uri(kind, hdfs_cluster)}{folder}"
    flip_a_byte(hdfs_cluster, DATANODES[:1])
    staged = staging(uri)
    assert (Path(staged.folder) / "1.csv").read_bytes() == data

    hdfs.write(f"{folder}/1.csv", [data[::-1]])
    flip_a_byte(hdfs_cluster, DATANODES)
    with pytest.raises(StorageUnavailableError, match=folder):
        staging(uri, run="second", stall_seconds=15.0)
    assert len(staging.cached()) == 1
    hdfs.delete(folder)


@pytest.mark.parametrize("count", [2, 8])
def test_stagers_of_a_file_at_once_of_which_one_is_killed_agree(
    count: int, resumed: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    data = os.urandom(2**20) * 40
    hdfs.write(f"{folder}/1.csv", [data])
    for name in DATANODES:
        resumed.pause(name)
    results: list[Any] = []

    def stage(number: int) -> None:
        try:
            results.append(staging(f"{resumed.uri}{folder}", run=f"run{number}", stall_seconds=150.0))
        except StorageUnavailableError as error:
            results.append(error)

    threads = [threading.Thread(target=stage, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(movers()) == count and staging.partial(), 60.0)
    movers()[0].kill()
    for name in DATANODES:
        resumed.resume(name)
    for thread in threads:
        thread.join()
    whole = [result for result in results if not isinstance(result, StorageUnavailableError)]
    assert len(whole) == count - 1
    assert all((Path(staged.folder) / "1.csv").read_bytes() == data for staged in whole)
    assert sum(staged.copied_bytes for staged in whole) == len(data)
    assert staging.partial() == []


@pytest.mark.parametrize("size", [40 * 2**20, 40_000])
def test_a_file_that_is_replaced_while_it_is_read_is_copied_again(
    size: int, resumed: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    hdfs.write(f"{folder}/1.csv", [os.urandom(size // 40) * 40])
    hdfs.write(f"{folder}-new.csv", [data := os.urandom(3000)])
    for name in DATANODES:
        resumed.pause(name)
    staged: list[Any] = []
    thread = threading.Thread(target=lambda: staged.append(staging(f"{resumed.uri}{folder}", stall_seconds=150.0)))
    thread.start()
    eventually(lambda: any("staging 1 files" in line for line in staging.lines))  # it waits for its bytes now
    hdfs.replace(f"{folder}-new.csv", f"{folder}/1.csv")
    for name in DATANODES:
        resumed.resume(name)
    thread.join()
    assert (Path(staged[0].folder) / "1.csv").read_bytes() == data
    assert [path.stat().st_size for path in staging.cached()] == [3000]


def test_a_namenode_whose_answers_make_no_sense_is_left_for_the_next(
    hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    class Broken(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(502)
            self.end_headers()
            self.wfile.write(b"<html>Bad Gateway</html>")

        def log_message(self, *_arguments: object) -> None:
            pass

    hdfs.write(f"{folder}/1.csv", [b"hello"])
    http = HTTPServer(("127.0.0.1", 0), Broken)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        url = f"http://127.0.0.1:{http.server_port};{hdfs_cluster.webhdfs_url}"
        staged = staging(f"hdfs://ns{folder}", options=StorageOptions("webhdfs", url=url))
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
    assert staged.total_bytes == 5
