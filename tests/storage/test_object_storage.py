"""Airflow's ObjectStoragePath over our connections."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath

from airflow_tf.core.errors import DeclarationError
from airflow_tf.hooks.filesystems import get_fs
from airflow_tf.storage.base import FileSystem
from airflow_tf.testing.hdfs import HdfsCluster


def connect(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> str:
    name = f"store_{uuid.uuid4().hex}"  # Airflow keeps file systems by connection id
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(fields))
    return name


@pytest.mark.hdfs
def test_a_path_with_a_connection_is_listed_read_and_written(
    hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hdfs.write(f"{folder}/1.csv", [b"hello"])
    host, port = hdfs_cluster.uri.removeprefix("hdfs://").split(":")
    store = connect(monkeypatch, conn_type="hdfs_native", host=host, port=int(port))
    base = ObjectStoragePath(f"{hdfs_cluster.uri}{folder}", conn_id=store)
    assert [path.name for path in base.iterdir()] == ["1.csv"]
    assert (base / "1.csv").read_bytes() == b"hello"
    (base / "2.csv").write_bytes(b"world")
    assert b"".join(hdfs.read(f"{folder}/2.csv", 0, 5)) == b"world"


@pytest.mark.hdfs
def test_without_a_connection_host_and_port_may_be_storage_options(
    hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str
) -> None:
    hdfs.write(f"{folder}/1.csv", [b"hello"])
    host, port = hdfs_cluster.uri.removeprefix("hdfs://").split(":")
    files = get_fs(None, {"host": host, "port": port})
    assert files.cat_file(f"{folder}/1.csv") == b"hello"


def test_a_webhdfs_connection_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    store = connect(monkeypatch, conn_type="webhdfs", host="nn")
    with pytest.raises(DeclarationError, match="Use one of type hdfs_native"):
        get_fs(store)
