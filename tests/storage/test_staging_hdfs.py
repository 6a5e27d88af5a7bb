"""Staging from a real HDFS whose parts fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_tf.core.errors import (
    AirflowTfError,
    StorageNotFoundError,
    StoragePermissionError,
    StorageUnavailableError,
)
from airflow_tf.storage.base import FileSystem
from airflow_tf.storage.options import StorageOptions
from airflow_tf.testing.hdfs import HdfsCluster
from tests.storage.storage_helpers import Staging, eventually, movers

pytestmark = pytest.mark.hdfs


@pytest.fixture
def paused_namenode(hdfs_cluster: HdfsCluster, folder: str) -> Iterator[HdfsCluster]:
    hdfs_cluster.pause("namenode")
    yield hdfs_cluster
    hdfs_cluster.resume("namenode")
    hdfs_cluster.wait_ready()


def in_thread(action: Any) -> tuple[threading.Thread, list[AirflowTfError]]:
    errors: list[AirflowTfError] = []

    def run() -> None:
        try:
            action()
        except AirflowTfError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


@pytest.mark.parametrize("kind", ["hdfs", "webhdfs"])
def test_a_tree_is_staged_whole(
    kind: str, hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    data = {f"day=2024-01-0{day}/part-{part}.csv": os.urandom(3_000_000 + day) for day in (1, 2) for part in (0, 1)}
    data["day=2024-01-01/large.csv"] = os.urandom(20_000_000)  # several blocks
    for name, content in data.items():
        hdfs.make_dirs(f"{folder}/{name}".rpartition("/")[0])
        hdfs.write(f"{folder}/{name}", [content])
    hdfs.write(f"{folder}/_SUCCESS", [b""])
    hdfs.write(f"{folder}/day=2024-01-01/late.csv._COPYING_", [b"half"])
    base = hdfs_cluster.uri if kind == "hdfs" else hdfs_cluster.webhdfs_url.replace("http", "webhdfs")
    staged = staging(f"{base}{folder}")
    assert {file.name: (Path(staged.folder) / file.name).read_bytes() for file in staged.files} == data
    assert staged.skipped == ("_SUCCESS", "day=2024-01-01/late.csv._COPYING_")
    assert len(staging(f"{base}{folder}/day=2024-01-0[2-9]/*.csv", run="second").files) == 2


@pytest.mark.parametrize(
    ("path", "why"),
    [("missing.csv", "missing.csv"), ("*.csv", "no file matches"), ("done", "0 data files although _SUCCESS exists")],
)
def test_nothing_to_stage_says_why(
    path: str, why: str, hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    hdfs.make_dirs(f"{folder}/done")
    hdfs.write(f"{folder}/done/_SUCCESS", [b""])
    with pytest.raises(StorageNotFoundError, match=why):
        staging(f"{hdfs_cluster.uri}{folder}/{path}")


@pytest.mark.parametrize("kind", ["hdfs", "webhdfs"])
def test_a_folder_whose_job_has_not_finished_is_refused_if_that_is_asked(
    kind: str, hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    base = hdfs_cluster.uri if kind == "hdfs" else hdfs_cluster.webhdfs_url.replace("http", "webhdfs")
    for day in ("day=1", "day=2"):
        hdfs.make_dirs(f"{folder}/{day}/_temporary/0")
        hdfs.write(f"{folder}/{day}/part-0", [b"x"])
        hdfs.write(f"{folder}/{day}/part-1", [b""])  # of a task that had no output
    hdfs.write(f"{folder}/day=1/_SUCCESS", [b""])
    with pytest.raises(StorageNotFoundError, match=r"day=2 has no _SUCCESS: the job that writes it has not finished"):
        staging(f"{base}{folder}", require_success=True)
    assert staging.cached() == []
    staged = staging(f"{base}{folder}/day=1", require_success=True)
    assert [file.name for file in staged.files] == ["part-0"]
    assert staged.skipped == ("_SUCCESS", "_temporary", "part-1")
    assert any(
        "2 files that Hadoop writes beside data, such as _SUCCESS; 1 files that are empty" in line
        for line in staging.lines
    )
    hdfs.write(f"{folder}/_SUCCESS", [b""])  # of a job that has written all partitions
    assert len(staging(f"{base}{folder}/*/part-*", require_success=True).files) == 2


@pytest.mark.parametrize("kind", ["hdfs", "webhdfs"])
def test_an_unreadable_directory_names_user_and_path(
    kind: str, hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    import hdfs_native

    hdfs.write(f"{folder}/1.csv", [b"x"])
    hdfs_native.Client(hdfs_cluster.uri).set_permission(folder, 0o700)
    base = hdfs_cluster.uri if kind == "hdfs" else hdfs_cluster.webhdfs_url.replace("http", "webhdfs")
    options = StorageOptions.from_json(StorageOptions.from_uri(f"{base}/").to_json() | {"user": "alice"})
    with pytest.raises(StoragePermissionError, match=f"{folder}.*alice"):
        staging(f"{base}{folder}", options=options)


def test_what_one_user_staged_another_does_not_get_from_the_cache(
    hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    import hdfs_native

    hdfs.write(f"{folder}/secret.csv", [b"x"])
    staging(f"{hdfs_cluster.uri}{folder}")
    hdfs_native.Client(hdfs_cluster.uri).set_permission(f"{folder}/secret.csv", 0o600)  # listed, but not readable
    with pytest.raises(StoragePermissionError, match=r"secret\.csv.*alice"):
        staging(f"{hdfs_cluster.uri}{folder}", run="alice", options=StorageOptions("hdfs", user="alice"))


@pytest.mark.parametrize("kind", ["hdfs", "webhdfs"])
def test_a_dead_namenode_is_retried_then_named(
    kind: str, hdfs_cluster: HdfsCluster, folder: str, staging: Staging
) -> None:
    base = hdfs_cluster.uri if kind == "hdfs" else hdfs_cluster.webhdfs_url.replace("http", "webhdfs")
    hdfs_cluster.kill("namenode")
    try:
        with pytest.raises(StorageUnavailableError, match=base):
            staging(f"{base}{folder}", stall_seconds=6.0)
    finally:
        hdfs_cluster.restart("namenode")
    assert any("trying again in" in line for line in staging.lines)


def test_a_namenode_that_comes_back_is_waited_for(
    hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    hdfs.write(f"{folder}/1.csv", [b"x"])
    hdfs_cluster.kill("namenode")
    thread, errors = in_thread(lambda: staging(f"{hdfs_cluster.uri}{folder}", stall_seconds=100.0))
    try:
        eventually(lambda: any("trying again in" in line for line in staging.lines))
    finally:
        hdfs_cluster.restart("namenode")
        thread.join()
    assert errors == []


@pytest.mark.parametrize("kind", ["hdfs", "webhdfs"])
def test_a_hung_namenode_is_given_up_in_time(
    kind: str, paused_namenode: HdfsCluster, folder: str, staging: Staging
) -> None:
    base = paused_namenode.uri if kind == "hdfs" else paused_namenode.webhdfs_url.replace("http", "webhdfs")
    started = time.monotonic()
    with pytest.raises(StorageUnavailableError, match=rf"{base}{folder} did not answer for 3 s"):
        staging(f"{base}{folder}", stall_seconds=3.0)
    assert time.monotonic() - started < 10
    assert movers() == []


def test_a_killed_mover_is_an_error_and_the_next_goes_on(
    hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    hdfs.write(f"{folder}/1.csv", [os.urandom(1_000_000)])
    uri = f"{hdfs_cluster.uri}{folder}"
    staging(uri, run="first")
    hdfs.write(f"{folder}/2.csv", [os.urandom(2_000_000)])
    for name in ("datanode1", "datanode2"):
        hdfs_cluster.pause(name)
    try:
        thread, errors = in_thread(lambda: staging(uri))
        eventually(staging.partial)  # 2.csv has its space and waits for bytes
        movers()[0].kill()
        thread.join()
    finally:
        for name in ("datanode1", "datanode2"):
            hdfs_cluster.resume(name)
        hdfs_cluster.wait_ready()
    assert isinstance(errors[0], StorageUnavailableError)
    assert "killed by signal 9" in str(errors[0])
    assert not (staging.folder / "run" / "data").exists()
    assert [path.stat().st_size for path in staging.cached()] == [1_000_000]

    staged = staging(uri)
    assert (staged.cached_bytes, staged.copied_bytes) == (1_000_000, 2_000_000)
    assert staging.partial() == []


def test_a_datanode_that_dies_during_the_copy_is_survived(
    hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    data = os.urandom(30_000_000)
    hdfs.write(f"{folder}/1.csv", [data])
    for name in ("datanode1", "datanode2"):
        hdfs_cluster.pause(name)
    thread, errors = in_thread(lambda: staging(f"{hdfs_cluster.uri}{folder}"))
    try:
        eventually(staging.partial)
        hdfs_cluster.kill("datanode1")
    finally:
        hdfs_cluster.resume("datanode2")
        thread.join()
        hdfs_cluster.restart("datanode1")
    assert errors == []
    assert (staging.folder / "run" / "data" / "1.csv").read_bytes() == data


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_mover_outlives_its_parent(
    number: signal.Signals, paused_namenode: HdfsCluster, folder: str, tmp_path: Path
) -> None:
    script = (
        "import sys, pathlib\n"
        "from airflow_tf.storage import client\n"
        "from airflow_tf.storage.options import StorageOptions\n"
        "folder = pathlib.Path(sys.argv[2])\n"
        "client.stage(sys.argv[1], options=StorageOptions('hdfs'), target=folder / 'data', cache_dir=folder / 'cache',\n"
        "             cache_bytes=1000, on_progress=print)\n"
    )
    command = [sys.executable, "-c", script, f"{paused_namenode.uri}{folder}", str(tmp_path)]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    eventually(lambda: len(movers()) == 1 and (tmp_path / "cache").exists())
    parent.send_signal(number)
    parent.wait(20)
    eventually(lambda: movers() == [])


def test_no_secret_is_in_the_command_line_or_environment(
    paused_namenode: HdfsCluster, folder: str, staging: Staging
) -> None:
    options = StorageOptions("hdfs", password="hunter2")
    thread, errors = in_thread(lambda: staging(f"{paused_namenode.uri}{folder}", options=options, stall_seconds=5.0))
    mover = eventually(movers)[0]
    assert "hunter2" not in json.dumps([mover.cmdline(), mover.environ()])
    thread.join()
    assert isinstance(errors[0], StorageUnavailableError)
    assert "hunter2" not in str(errors[0])
