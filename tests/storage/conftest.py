from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_tf.storage.base import FileSystem, Uri
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.registry import open_file_system
from airflow_tf.testing.hdfs import HdfsCluster
from tests.storage.storage_helpers import Staging, eventually, movers


@pytest.fixture(autouse=True)
def no_mover_left() -> Iterator[None]:
    """Every test of storage ends without a process of its own; the shared HDFS may have been restarted."""
    yield
    eventually(lambda: movers() == [])


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(tmp_path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.fixture
def hdfs(hdfs_cluster: HdfsCluster) -> FileSystem:
    uri = f"{hdfs_cluster.uri}/"
    return open_file_system(Uri.parse(uri), StorageOptions.from_uri(uri))


@pytest.fixture
def folder(hdfs: FileSystem) -> str:
    """An empty folder on HDFS."""
    path = f"/tests/{uuid.uuid4().hex}"
    hdfs.make_dirs(path)
    return path
