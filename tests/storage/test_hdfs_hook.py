"""Connections, and the staging operator that uses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.manifest import StagedInput
from airflow_tf.hooks.hdfs import HdfsHook
from airflow_tf.storage.base import FileSystem
from airflow_tf.testing.hdfs import HdfsCluster
from airflow_tf.transfers.hdfs_to_local import HdfsToLocalOperator
from tests.storage.storage_helpers import task_context


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch):
    """Declare a connection and return its hook."""

    def declare(**fields: Any) -> HdfsHook:
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(fields))
        return HdfsHook("store")

    return declare


def test_without_a_connection_the_uri_says_all() -> None:
    hook = HdfsHook(None)
    assert hook.storage_options("hdfs://nn:8020/x").backend == "hdfs"
    assert hook.storage_options("webhdfs://nn/x").url == "http://nn:9870"
    assert hook.storage_options("swebhdfs://nn:9871/x").url == "https://nn:9871"
    assert hook.storage_options("file:///x").backend == "file"


def test_a_file_uri_ignores_the_connection() -> None:
    assert HdfsHook("not_there").storage_options("file:///x").backend == "file"


def test_a_webhdfs_connection_of_the_provider_works_unchanged(connect) -> None:
    hook = connect(
        conn_type="webhdfs",
        host="nn1,nn2",
        port=9871,
        login="ann",
        password="hunter2",
        extra={"use_ssl": "True", "verify": "/ca.pem", "cert": "/c.pem", "key": "/k.pem", "cookies": {"a": "b"}},
    )
    options = hook.storage_options("hdfs://nn:8020/x")
    assert (options.backend, options.url) == ("webhdfs", "https://nn1:9871;https://nn2:9871")
    assert (options.user, options.password, options.verify) == ("ann", "hunter2", "/ca.pem")
    assert (options.cert, options.key, options.cookies) == ("/c.pem", "/k.pem", {"a": "b"})
    assert "hunter2" not in repr(options)
    assert connect(conn_type="webhdfs", host="nn").storage_options("hdfs://nn/x").url == "http://nn:9870"
    assert connect(conn_type="webhdfs", host="nn", extra={"use_ssl": True}).storage_options("hdfs://n/x").verify is True


def test_a_native_connection_gives_user_properties_and_kerberos(connect) -> None:
    hook = connect(
        conn_type="hdfs_native",
        host="nn",
        login="ann",
        extra={"config": {"dfs.replication": 1}, "kerberos_principal": "ann@X", "kerberos_keytab": "/k"},
    )
    options = hook.storage_options("hdfs:///x")
    assert (options.backend, options.url, options.user) == ("hdfs", "hdfs://nn:8020", "ann")
    assert (options.config, options.kerberos_principal) == ({"dfs.replication": "1"}, "ann@X")
    assert hook.storage_options("hdfs://other:9000/x").url == ""  # the URI's own authority


def test_several_native_hosts_become_one_name_service(connect) -> None:
    options = connect(conn_type="hdfs_native", host="nn1,nn2:9000").storage_options("hdfs:///x")
    assert options.url == "hdfs://airflow-tf"
    assert options.config["dfs.ha.namenodes.airflow-tf"] == "nn0,nn1"
    assert options.config["dfs.namenode.rpc-address.airflow-tf.nn0"] == "nn1:8020"
    assert options.config["dfs.namenode.rpc-address.airflow-tf.nn1"] == "nn2:9000"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"conn_type": "ssh", "host": "h"}, "of type 'ssh'"),
        ({"conn_type": "hdfs_native", "host": "h", "extra": {"passwd": "x"}}, "unknown extras: passwd"),
        ({"conn_type": "hdfs_native", "host": "h", "extra": {"config": [1]}}, "not an object"),
        ({"conn_type": "hdfs_native", "host": "h", "extra": {"config": "{"}}, "is no JSON"),
        ({"conn_type": "webhdfs"}, "has no host"),
    ],
)
def test_wrong_connections_are_refused(connect, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        connect(**fields).storage_options("hdfs://nn/x")


def test_a_native_connection_does_not_serve_webhdfs_uris(connect) -> None:
    with pytest.raises(DeclarationError, match="serves hdfs:// URIs"):
        connect(conn_type="hdfs_native", host="nn").storage_options("webhdfs://nn/x")


def test_a_connection_that_is_refused_says_so(connect) -> None:
    good, message = connect(conn_type="hdfs_native", host="127.0.0.1", port=1).test_connection()
    assert not good
    assert "Cannot read hdfs:///" in message


@pytest.mark.hdfs
@pytest.mark.parametrize("kind", ["webhdfs", "hdfs_native"])
def test_the_operator_stages_through_a_connection(
    kind: str,
    connect,
    hdfs_cluster: HdfsCluster,
    hdfs: FileSystem,
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__HOME", str(tmp_path / "home"))
    hdfs.write(f"{folder}/1.csv", [b"hello"])
    url = hdfs_cluster.webhdfs_url if kind == "webhdfs" else hdfs_cluster.uri
    host, port = url.rpartition("/")[2].split(":")
    hook = connect(conn_type=kind, host=host, port=int(port), login="root")
    if kind == "hdfs_native":
        assert hook.test_connection()[0]
    operator = HdfsToLocalOperator(task_id="stage", source=f"hdfs://{folder}", hdfs_conn_id="store", input_name="train")
    result = operator.execute(task_context())
    assert (result["files"], result["bytes"]) == (1, 5)
    assert Path(result["folder"], "1.csv").read_bytes() == b"hello"
    assert [file.name for file in StagedInput.loads(Path(result["manifest"]).read_text()).files] == ["1.csv"]
    assert (tmp_path / "home" / "cache").is_dir()
