"""Publishing: one whole result at the destination, or nothing."""

from __future__ import annotations

import getpass
import json
import multiprocessing
import os
import random
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
import requests

from airflow_tf.core.errors import (
    PublishError,
    StorageError,
    StorageExistsError,
    StorageNoSpaceError,
    StorageUnavailableError,
)
from airflow_tf.core.manifest import PublishManifest
from airflow_tf.storage import client
from airflow_tf.storage.base import FileSystem, Uri, read_all
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.storage.publishing import Publisher
from airflow_tf.storage.registry import open_file_system
from airflow_tf.testing.hdfs import HdfsCluster
from tests.storage.storage_helpers import eventually, movers


class Place:
    """A base URI on one backend, empty at first."""

    def __init__(self, base: str, version: str = "v=1") -> None:
        self.base = base
        self.destination = f"{base}/{version}"
        self.options = StorageOptions.from_uri(base)
        self.path = Uri.parse(base).path
        self.files: FileSystem = open_file_system(Uri.parse(base), self.options)
        self.files.make_dirs(self.path)

    def publish(self, local: Path, manifest: PublishManifest, stall_seconds: float = 20.0) -> str:
        return client.publish(
            local,
            self.destination,
            options=self.options,
            manifest=manifest,
            on_progress=lambda _text: None,
            stall_seconds=stall_seconds,
        )

    def tree(self, path: str | None = None) -> dict[str, bytes]:
        """Every file below the base, hidden ones included."""
        found = {}
        for info in self.files.list(path or self.path):
            if info.is_dir:
                found |= self.tree(info.path)
            else:
                found[info.path.removeprefix(f"{self.path}/")] = read_all(self.files, info.path)
        return found

    def names(self) -> list[str]:
        return sorted(info.path.rpartition("/")[2] for info in self.files.list(self.path))


def base_uri(kind: str, request: pytest.FixtureRequest) -> str:
    if kind == "file":
        return f"file://{request.getfixturevalue('tmp_path')}/models"
    cluster: HdfsCluster = request.getfixturevalue("hdfs_cluster")
    base = cluster.uri if kind == "hdfs" else cluster.webhdfs_url.replace("http", "webhdfs")
    return f"{base}/publish/{uuid.uuid4().hex}"


@pytest.fixture(
    params=["file", pytest.param("hdfs", marks=pytest.mark.hdfs), pytest.param("webhdfs", marks=pytest.mark.hdfs)]
)
def place(request: pytest.FixtureRequest) -> Place:
    return Place(base_uri(request.param, request))


@pytest.fixture
def on_hdfs(request: pytest.FixtureRequest) -> Place:
    return Place(base_uri("hdfs", request))


@pytest.fixture
def local(tmp_path: Path) -> Path:
    folder = tmp_path / "local"
    (folder / "sub").mkdir(parents=True)
    (folder / "ckpt-1.index").write_bytes(os.urandom(1000))
    (folder / "ckpt-1.data-00000-of-00001").write_bytes(os.urandom(9_000_000))
    (folder / "sub" / "asset").write_bytes(b"asset")
    (folder / "not-listed").write_bytes(b"stays here")
    return folder


def manifest_of(local: Path, fence: int = 5, **changes: Any) -> PublishManifest:
    names = ["ckpt-1.index", "ckpt-1.data-00000-of-00001", "sub/asset"]
    contents = {name: (local / name).read_bytes() for name in names}
    files = {name: {"size": len(data), "crc32c": google_crc32c.value(data)} for name, data in contents.items()}
    digest = f"{google_crc32c.value(b''.join(contents.values())):08x}"
    return PublishManifest(**({"fence": fence, "digest": digest, "files": files, "metrics": {"mae": 1.5}} | changes))


def whole(local: Path, manifest: PublishManifest, version: str = "v=1") -> dict[str, bytes]:
    files = {f"{version}/{name}": (local / name).read_bytes() for name in manifest.files}
    return files | {f"{version}/manifest.json": manifest.dumps().encode(), f"{version}/_SUCCESS": b""}


def test_the_destination_holds_the_files_the_manifest_and_success(place: Place, local: Path) -> None:
    manifest = manifest_of(local)
    assert place.publish(local, manifest) == place.destination
    assert place.tree() == whole(local, manifest)
    assert json.loads(place.tree()["v=1/manifest.json"])["metrics"] == {"mae": 1.5}


class InTurn:
    """Lets small files wait for the large one, and refuses two of them at once."""

    def __init__(self, inner: FileSystem) -> None:
        self._inner, self._small, self._large_is_there = inner, threading.Lock(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, path: str, chunks: Any) -> int:
        if path.endswith("ckpt-1.data-00000-of-00001"):
            length = self._inner.write(path, chunks)
            self._large_is_there.set()
            return length
        assert self._small.acquire(blocking=False), f"{path} is written beside another small file"
        try:
            assert self._large_is_there.wait(30)
            return self._inner.write(path, chunks)
        finally:
            self._small.release()


def test_small_files_go_one_after_the_other_beside_the_large_ones(tmp_path: Path, local: Path) -> None:
    place, manifest = Place(f"file://{tmp_path}/models"), manifest_of(local)
    publish_here(place, InTurn(place.files), local, manifest)
    assert place.tree() == whole(local, manifest)


def test_publishing_the_same_result_again_changes_nothing(place: Place, local: Path) -> None:
    manifest = manifest_of(local)
    place.publish(local, manifest)
    before = place.files.stat(f"{place.path}/v=1/_SUCCESS")
    assert place.publish(local, manifest_of(local, fence=6)) == place.destination
    assert place.files.stat(f"{place.path}/v=1/_SUCCESS") == before


def test_a_result_of_a_lower_fence_is_replaced_and_of_a_higher_one_is_not(place: Place, local: Path) -> None:
    place.publish(local, manifest_of(local, fence=5))
    (local / "sub" / "asset").write_bytes(b"newer")
    newer = manifest_of(local, fence=6)
    place.publish(local, newer)
    assert place.tree() == whole(local, newer)
    (local / "sub" / "asset").write_bytes(b"older")
    for fence in (5, 6):
        with pytest.raises(StorageExistsError, match=f"published under fence 6, this result has fence {fence}"):
            place.publish(local, manifest_of(local, fence=fence))
    assert place.names() == ["v=1"]
    assert place.tree()["v=1/sub/asset"] == b"newer"


def test_a_foreign_destination_is_refused_and_left_alone(place: Place, local: Path) -> None:
    place.files.make_dirs(f"{place.path}/v=1")
    place.files.write(f"{place.path}/v=1/theirs", [b"x"])
    with pytest.raises(StorageExistsError, match="no manifest of airflow_tf, so it is not replaced"):
        place.publish(local, manifest_of(local))
    assert place.tree() == {"v=1/theirs": b"x"}
    assert place.names() == ["v=1"]


def test_a_local_file_that_is_not_the_manifests_publishes_nothing(place: Place, local: Path) -> None:
    manifest = manifest_of(local)
    (local / "ckpt-1.index").write_bytes(b"\0" * 1000)
    with pytest.raises(PublishError, match=r"ckpt-1\.index is not the file that the manifest describes"):
        place.publish(local, manifest)
    (local / "ckpt-1.index").unlink()
    with pytest.raises(PublishError, match=r"ckpt-1\.index cannot be read"):
        place.publish(local, manifest)
    assert place.names() == []


class Moving:
    """A server without the no-overwrite form: it moves into a directory that exists, and answers OK."""

    def __init__(self, inner: FileSystem, racing: bytes) -> None:
        self._inner, self._racing = inner, racing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def rename(self, source: str, target: str) -> None:
        self._inner.make_dirs(target)
        self._inner.write(f"{target}/manifest.json", [self._racing])
        self._inner.rename(source, f"{target}/{source.rpartition('/')[2]}")


class Forgetful:
    """A server that renames, and dies before it answers."""

    def __init__(self, inner: FileSystem) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def rename(self, source: str, target: str) -> None:
        self._inner.rename(source, target)
        raise StorageUnavailableError("RPC listener disconnected")


def publish_here(place: Place, files: Any, local: Path, manifest: PublishManifest) -> str:
    with Path(os.devnull).open("wb") as events:
        reporter = Reporter(events.fileno())
        publisher = Publisher(Uri.parse(place.destination), files, reporter, Patience(0.0, reporter.note), manifest)
        return publisher.run(local)


def test_a_rename_that_moved_into_a_racing_writers_directory_is_undone(local: Path, tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}/models")
    racing = json.dumps({"fence": 9, "digest": "other"}).encode()
    with pytest.raises(StorageExistsError):
        publish_here(place, Moving(place.files, racing), local, manifest_of(local))
    assert place.tree() == {"v=1/manifest.json": racing}


def test_a_rename_whose_answer_was_lost_counts_if_it_was_done(local: Path, tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}/models")
    manifest = manifest_of(local)
    assert publish_here(place, Forgetful(place.files), local, manifest) == place.destination
    assert place.tree() == whole(local, manifest)


@pytest.fixture
def paused_datanodes(hdfs_cluster: HdfsCluster, on_hdfs: Place) -> Iterator[HdfsCluster]:
    names = ("datanode1", "datanode2")
    for name in names:
        hdfs_cluster.pause(name)
    yield hdfs_cluster
    for name in names:
        hdfs_cluster.resume(name)
    hdfs_cluster.wait_ready()


@pytest.mark.hdfs
def test_a_mover_killed_midway_leaves_nothing_at_the_destination_and_the_next_cleans_up(
    on_hdfs: Place, local: Path, paused_datanodes: HdfsCluster
) -> None:
    errors: list[StorageError] = []

    def run() -> None:
        try:
            on_hdfs.publish(local, manifest_of(local))
        except StorageError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: [name for name in on_hdfs.names() if name.startswith(".airflow_tf-new-5-v=1-")])
    movers()[0].kill()
    thread.join()
    assert "killed by signal 9" in str(errors[0])
    assert "v=1" not in on_hdfs.names()
    for name in ("datanode1", "datanode2"):
        paused_datanodes.resume(name)
    paused_datanodes.wait_ready()
    manifest = manifest_of(local)
    on_hdfs.publish(local, manifest)
    assert on_hdfs.tree() == whole(local, manifest)


@pytest.mark.hdfs
def test_hung_datanodes_end_the_publication_in_time(on_hdfs: Place, local: Path, paused_datanodes: HdfsCluster) -> None:
    with pytest.raises(StorageUnavailableError, match="did not answer for 3 s"):
        on_hdfs.publish(local, manifest_of(local), stall_seconds=3.0)
    assert "v=1" not in on_hdfs.names()


@pytest.mark.hdfs
def test_a_quota_is_named_and_nothing_is_left(on_hdfs: Place, local: Path, hdfs_cluster: HdfsCluster) -> None:
    url = f"{hdfs_cluster.webhdfs_url}/webhdfs/v1{on_hdfs.path}?op=SETQUOTA&storagespacequota={10 * 2**20}&user.name="
    answer = requests.put(url + getpass.getuser(), timeout=20)
    assert answer.ok, answer.text
    with pytest.raises(StorageNoSpaceError, match="quota"):
        on_hdfs.publish(local, manifest_of(local))
    assert on_hdfs.names() == []


class Failing:
    """The name node goes away at the n-th call, and stays away."""

    def __init__(self, inner: FileSystem, calls: int) -> None:
        self._inner, self._left = inner, calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def call(*arguments: Any) -> Any:
            if self._left == 0:
                raise StorageUnavailableError("the name node is gone")
            self._left -= 1
            return method(*arguments)

        return call


def test_a_file_system_that_fails_in_any_phase_shows_the_old_or_the_new_result_never_a_part(
    local: Path, tmp_path: Path
) -> None:
    older, newer = manifest_of(local, fence=1, digest="older"), manifest_of(local, fence=2)
    for calls in range(200):
        place = Place(f"file://{tmp_path}/{calls}")
        publish_here(place, place.files, local, older)
        done = True
        try:
            publish_here(place, Failing(place.files, calls), local, newer)
        except StorageUnavailableError:
            done = False
        visible = {name: data for name, data in place.tree().items() if not name.startswith(".")}
        assert visible in ({}, whole(local, older), whole(local, newer))
        publish_here(place, place.files, local, newer)
        assert place.tree() == whole(local, newer)
        if done:
            return
    pytest.fail("it never succeeds")


def test_a_publisher_killed_at_any_moment_shows_a_whole_result_or_none(local: Path, tmp_path: Path) -> None:
    place, manifest = Place(f"file://{tmp_path}/models"), manifest_of(local)
    fork, moments = multiprocessing.get_context("fork"), random.Random(7)
    started = time.monotonic()
    Place(f"file://{tmp_path}/first").publish(local, manifest)
    seconds = time.monotonic() - started
    for _ in range(20):
        process = fork.Process(target=place.publish, args=(local, manifest))
        process.start()
        process.join(moments.uniform(0, 1.2 * seconds))
        process.kill()
        process.join()
        eventually(lambda: not movers())  # they die with the process that started them
        visible = {name: data for name, data in place.tree().items() if not name.startswith(".")}
        assert visible in ({}, whole(local, manifest))
        place.files.delete(f"{place.path}/v=1")
    place.publish(local, manifest)
    assert place.tree() == whole(local, manifest)
