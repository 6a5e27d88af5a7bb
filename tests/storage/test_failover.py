"""Two NameNodes, of which the active one is killed and the other takes over, in the middle of what we do."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import psutil
import pytest

from airflow_tf.core.errors import StorageUnavailableError
from airflow_tf.core.manifest import PublishManifest
from airflow_tf.storage import client
from airflow_tf.storage.base import FileSystem, Uri, read_all
from airflow_tf.storage.cache import Cache, boot_id
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.storage.registry import open_file_system
from airflow_tf.storage.staging import Stager
from airflow_tf.testing.hdfs_ha import NAME_SERVICE, HaHdfsCluster
from tests.storage.storage_helpers import Staging, eventually

pytestmark = pytest.mark.hdfs

KINDS = ("hdfs", "webhdfs")


@pytest.fixture(scope="module")
def running() -> Iterator[HaHdfsCluster]:
    with HaHdfsCluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(running: HaHdfsCluster) -> Iterator[HaHdfsCluster]:
    """Both NameNodes run, before and after."""
    yield running
    running.restart(running.standby)


def options_of(kind: str, cluster: HaHdfsCluster) -> StorageOptions:
    if kind == "hdfs":
        return StorageOptions("hdfs", config=cluster.client_properties())
    return StorageOptions("webhdfs", url=cluster.webhdfs_url)


@pytest.fixture
def files(cluster: HaHdfsCluster) -> FileSystem:
    return open_file_system(Uri.parse(f"{cluster.uri}/"), options_of("hdfs", cluster))


@pytest.fixture
def folder(files: FileSystem) -> str:
    path = f"/tests/{uuid.uuid4().hex}"
    files.make_dirs(path)
    return path


class FailOver:
    """Kills the active NameNode, once; the other one takes over while the caller already goes on."""

    def __init__(self, cluster: HaHdfsCluster) -> None:
        self._cluster = cluster
        self._thread: threading.Thread | None = None

    def __call__(self) -> None:
        if self._thread is None:
            self._cluster.kill(self._cluster.active)
            self._thread = threading.Thread(target=self._cluster.activate, args=(self._cluster.standby,))
            self._thread.start()

    def join(self) -> None:
        assert self._thread, "the NameNode was not killed"
        self._thread.join()


class Breaking:
    """A file system whose first stream breaks after some bytes, as ``fault`` happens."""

    def __init__(self, inner: FileSystem, after_bytes: int, fault: Callable[[], None]) -> None:
        self._inner, self._after_bytes, self._fault = inner, after_bytes, fault
        self.reads: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        self.reads.append((offset, length))
        moved = 0
        for chunk in self._inner.read(path, offset, length):
            yield chunk
            moved += len(chunk)
            if len(self.reads) == 1 and moved >= self._after_bytes:
                self._fault()
                raise StorageUnavailableError("the stream broke")


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_goes_on_at_its_offset_after_the_active_namenode_was_killed(
    kind: str, cluster: HaHdfsCluster, files: FileSystem, folder: str, tmp_path: Path
) -> None:
    data = os.urandom(20 * 2**20)  # three blocks
    files.write(f"{folder}/1.csv", [data])
    uri, options, fail_over = Uri.parse(f"{cluster.uri}{folder}"), options_of(kind, cluster), FailOver(cluster)
    source = Breaking(open_file_system(uri, options), 9 * 2**20, fail_over)
    with Path(os.devnull).open("wb") as events:
        reporter = Reporter(events.fileno())
        stager = Stager(
            uri=uri,
            options=options,
            files=source,
            cache=Cache(tmp_path / "cache", 2**30, boot_id(), reporter.tick),
            reporter=reporter,
            patience=Patience(60.0, reporter.note),
        )
        staged = stager.run(tmp_path / "run" / "data")
    fail_over.join()
    assert (Path(staged.folder) / "1.csv").read_bytes() == data
    (_, whole), (offset, left), *later = source.reads
    assert 9 * 2**20 <= offset < whole == offset + left
    assert not [read for read in later if read[0] < offset]


@pytest.mark.parametrize("kind", KINDS)
def test_a_version_is_published_by_one_namenode_or_the_other(
    kind: str, cluster: HaHdfsCluster, files: FileSystem, folder: str, tmp_path: Path
) -> None:
    (tmp_path / "model.index").write_bytes(b"index")
    entry = {"size": 5, "crc32c": google_crc32c.value(b"index")}
    fail_over = FailOver(cluster)
    destination = client.publish(
        tmp_path,
        f"{cluster.uri}{folder}/v=1",
        options=options_of(kind, cluster),
        manifest=PublishManifest(1, "digest", {"model.index": entry}),
        on_progress=lambda _text: None,
        confirm=fail_over,  # all is written, and is about to get its name
    )
    fail_over.join()
    assert destination == f"{cluster.uri}{folder}/v=1"
    assert {Path(info.path).name for info in files.list(folder)} == {"v=1"}  # nothing is left beside it
    assert {Path(info.path).name for info in files.list(f"{folder}/v=1")} == {
        "model.index",
        "manifest.json",
        "_SUCCESS",
    }
    assert read_all(files, f"{folder}/v=1/model.index") == b"index"


def test_a_namenode_that_was_only_paused_is_fenced_off_and_writes_nothing(
    cluster: HaHdfsCluster, files: FileSystem, folder: str
) -> None:
    old = cluster.active
    address = cluster.client_properties()[f"dfs.namenode.rpc-address.{NAME_SERVICE}.{old}"]
    cluster.pause(old)
    cluster.activate(cluster.standby)
    cluster.resume(old)
    uri = f"hdfs://{address}/"
    with pytest.raises(StorageUnavailableError):
        open_file_system(Uri.parse(uri), StorageOptions.from_uri(uri)).make_dirs(f"{folder}/lost")
    eventually(lambda: not psutil.pid_exists(cluster.pid(old)) or psutil.Process(cluster.pid(old)).status() == "zombie")
    assert list(files.list(folder)) == []
    files.write(f"{folder}/1.csv", [b"hello"])
    assert read_all(files, f"{folder}/1.csv") == b"hello"


@pytest.mark.parametrize("kind", KINDS)
def test_without_an_active_namenode_the_call_ends_in_time_and_says_so(
    kind: str, cluster: HaHdfsCluster, folder: str, staging: Staging
) -> None:
    cluster.kill(cluster.active)
    try:
        with pytest.raises(
            StorageUnavailableError, match=f"{cluster.uri}{folder}.*(not supported in state standby|refused|did)"
        ):
            staging(f"{cluster.uri}{folder}", options=options_of(kind, cluster), stall_seconds=5.0)
    finally:
        cluster.activate(cluster.standby)
