"""Processes of a real HDFS that die while we read or write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from airflow_tf.core.errors import StorageUnavailableError
from airflow_tf.core.manifest import PublishManifest
from airflow_tf.storage import client
from airflow_tf.storage.base import FileSystem, read_all
from airflow_tf.storage.options import StorageOptions
from airflow_tf.testing.hdfs import HdfsCluster
from tests.storage.storage_helpers import Staging, eventually, movers

pytestmark = pytest.mark.hdfs

KINDS = ("hdfs", "webhdfs")
DATANODES = ("datanode1", "datanode2")


def base_uri(kind: str, cluster: HdfsCluster) -> str:
    return cluster.uri if kind == "hdfs" else cluster.webhdfs_url.replace("http", "webhdfs")


def being_written(cluster: HdfsCluster) -> list[Path]:
    """Return the unfinished blocks of the first DataNode."""
    found = (cluster.folder / "data" / "datanode1").rglob("rbw/blk_*")
    return [path for path in found if path.suffix != ".meta"]


@pytest.fixture
def repaired(hdfs_cluster: HdfsCluster) -> Iterator[HdfsCluster]:
    """The cluster, of which a test may pause and kill DataNodes."""
    yield hdfs_cluster
    for name in DATANODES:
        if not hdfs_cluster.runs(name):
            hdfs_cluster.restart(name)
        hdfs_cluster.resume(name)
    hdfs_cluster.wait_ready()


@pytest.fixture
def stagings(tmp_path: Path) -> dict[str, Staging]:
    """A cache of its own for each protocol."""
    return {kind: Staging(tmp_path / kind) for kind in KINDS}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def start(
    pool: ThreadPoolExecutor, stagings: dict[str, Staging], cluster: HdfsCluster, folder: str, **changes: Any
) -> dict[str, Future[Any]]:
    """Stage the folder by both protocols at once, from DataNodes that are paused; return when all wait for bytes."""
    for name in DATANODES:
        cluster.pause(name)
    started = {
        kind: pool.submit(staging, f"{base_uri(kind, cluster)}{folder}", **changes)
        for kind, staging in stagings.items()
    }
    eventually(lambda: all(staging.partial() for staging in stagings.values()), 60.0)
    return started


def test_when_all_datanodes_die_in_the_middle_the_copy_ends_in_time_and_the_next_one_succeeds(
    repaired: HdfsCluster, hdfs: FileSystem, folder: str, stagings: dict[str, Staging], pool: ThreadPoolExecutor
) -> None:
    data = os.urandom(2**20) * 20
    hdfs.write(f"{folder}/1.csv", [data])
    started = start(pool, stagings, repaired, folder, stall_seconds=15.0)
    for name in DATANODES:
        repaired.kill(name)
    for kind, future in started.items():
        with pytest.raises(StorageUnavailableError, match=f"{base_uri(kind, repaired)}{folder}"):
            future.result()
        assert stagings[kind].cached() == []
    for name in DATANODES:
        repaired.restart(name)
    for kind, staging in stagings.items():
        staged = staging(f"{base_uri(kind, repaired)}{folder}")
        assert (Path(staged.folder) / "1.csv").read_bytes() == data
        assert staging.partial() == []


def test_a_namenode_that_is_killed_and_restarted_in_the_middle_of_a_copy_is_waited_for(
    repaired: HdfsCluster, hdfs: FileSystem, folder: str, stagings: dict[str, Staging], pool: ThreadPoolExecutor
) -> None:
    for number in range(12):  # more than are copied at once: the rest is opened after the kill
        hdfs.write(f"{folder}/{number:02}.csv", [b"%02d" % number * 100_000])
    started = start(pool, stagings, repaired, folder, stall_seconds=300.0)
    repaired.kill("namenode")
    for name in DATANODES:
        repaired.resume(name)
    eventually(lambda: all(any("trying again in" in line for line in s.lines) for s in stagings.values()), 60.0)
    repaired.restart("namenode")
    for kind, future in started.items():
        staged = future.result()
        copies = [(Path(staged.folder) / f"{number:02}.csv").read_bytes() for number in range(12)]
        assert copies == [b"%02d" % number * 100_000 for number in range(12)]
        assert stagings[kind].partial() == []


def stopped_in_blocks(cluster: HdfsCluster, count: int) -> bool:
    """Stop all movers and tell whether so many are in the middle of a block; else let them go on."""
    if len(being_written(cluster)) != count:
        return False
    for mover in movers():
        mover.suspend()
    if len(being_written(cluster)) == count:
        return True
    for mover in movers():  # one was between two blocks
        mover.resume()
    return False


def test_a_datanode_that_dies_in_the_middle_of_a_write_costs_time_or_the_try_but_never_bytes(
    repaired: HdfsCluster, hdfs: FileSystem, folder: str, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    data = os.urandom(2**20) * 96  # many blocks: the next one is asked for before the NameNode notices anything
    (tmp_path / "model").write_bytes(data)
    manifest = PublishManifest(1, "digest", {"model": {"size": len(data), "crc32c": google_crc32c.value(data)}})
    notes: list[str] = []

    def upload(kind: str) -> None:
        uri = f"{base_uri(kind, repaired)}{folder}/{kind}"
        client.upload(
            tmp_path / "model",
            uri,
            options=StorageOptions.from_uri(uri),
            overwrite=False,
            on_progress=notes.append,
            stall_seconds=30.0,
        )

    def publish() -> None:
        uri = f"{repaired.uri}{folder}/v=1"
        client.publish(
            tmp_path,
            uri,
            options=StorageOptions.from_uri(uri),
            manifest=manifest,
            on_progress=notes.append,
            stall_seconds=30.0,
        )

    jobs = [partial(upload, "hdfs"), partial(upload, "webhdfs"), publish]
    tries = [pool.submit(job) for job in jobs]
    eventually(lambda: stopped_in_blocks(repaired, len(jobs)), 60.0)
    repaired.kill("datanode1")
    for mover in movers():
        mover.resume()
    for job, outcome in zip(jobs, tries, strict=True):
        if error := outcome.exception():
            assert isinstance(error, StorageUnavailableError), error
            notes.append(str(error))
            job()  # as Airflow tries again
    assert notes
    for name in ("hdfs", "webhdfs", "v=1/model"):
        assert read_all(hdfs, f"{folder}/{name}") == data
    assert {Path(info.path).name for info in hdfs.list(folder)} == {"hdfs", "webhdfs", "v=1"}
