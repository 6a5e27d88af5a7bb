"""What a real HDFS refuses while we write: quotas, and everything while it is in safe mode."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from airflow_tf.core.errors import StorageNoSpaceError, StoragePermissionError, StorageUnavailableError
from airflow_tf.storage import client
from airflow_tf.storage.base import FileSystem
from airflow_tf.storage.options import StorageOptions
from airflow_tf.testing.hdfs import HdfsCluster
from tests.storage.storage_helpers import Staging

pytestmark = pytest.mark.hdfs


def base_uri(kind: str, cluster: HdfsCluster) -> str:
    return cluster.uri if kind == "hdfs" else cluster.webhdfs_url.replace("http", "webhdfs")


def upload(local: Path, uri: str, lines: list[str], stall_seconds: float = 20.0) -> None:
    options = StorageOptions.from_uri(uri)
    client.upload(local, uri, options=options, overwrite=False, on_progress=lines.append, stall_seconds=stall_seconds)


@pytest.mark.parametrize("kind", ["hdfs", "webhdfs"])
@pytest.mark.parametrize("quota", ["namespacequota=3", f"storagespacequota={10 * 2**20}"])
def test_a_quota_is_named_and_nothing_is_left(
    kind: str, quota: str, hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    for name in "abcd":
        (tmp_path / "model" / name).write_bytes(b"x")
    url = f"{hdfs_cluster.webhdfs_url}/webhdfs/v1{folder}?op=SETQUOTA&{quota}&user.name={getpass.getuser()}"
    answer = requests.put(url, timeout=20)
    assert answer.ok, answer.text
    with pytest.raises(StorageNoSpaceError, match=rf"{folder}.*quota"):
        upload(tmp_path / "model", f"{base_uri(kind, hdfs_cluster)}{folder}/model", [])
    assert list(hdfs.list(folder)) == []


@pytest.mark.parametrize("kind", ["hdfs", "webhdfs"])
def test_a_user_who_may_not_write_is_named_and_nothing_is_left(
    kind: str, hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str
) -> None:
    uri = f"{base_uri(kind, hdfs_cluster)}{folder}/copy"
    options = replace(StorageOptions.from_uri(uri), user="alice")
    with pytest.raises(StoragePermissionError, match=rf"(?s){folder}.*alice"):
        client.upload(Path(__file__), uri, options=options, overwrite=False, on_progress=lambda _text: None)
    assert list(hdfs.list(folder)) == []


@pytest.fixture
def safe(hdfs_cluster: HdfsCluster, folder: str, hdfs: FileSystem) -> Iterator[HdfsCluster]:
    """The cluster in safe mode, with one file in the folder."""
    hdfs.write(f"{folder}/1.csv", [b"1,2\n"])
    admin = ["org.apache.hadoop.hdfs.tools.DFSAdmin", "-safemode"]
    hdfs_cluster._run("enter safe mode", [*admin, "enter"])
    yield hdfs_cluster
    hdfs_cluster._run("leave safe mode", [*admin, "leave"])
    hdfs_cluster.wait_ready()


def test_in_safe_mode_staging_works_and_an_upload_is_tried_again_and_then_told(
    safe: HdfsCluster, folder: str, staging: Staging
) -> None:
    for number, kind in enumerate(("hdfs", "webhdfs")):
        base = base_uri(kind, safe)
        assert staging(f"{base}{folder}", run=f"run{number}").total_bytes == 4
        lines: list[str] = []
        with pytest.raises(StorageUnavailableError, match=r"(?i)safe mode"):
            upload(Path(__file__), f"{base}{folder}/copy", lines, stall_seconds=8.0)
        assert any("trying again in" in line for line in lines)
