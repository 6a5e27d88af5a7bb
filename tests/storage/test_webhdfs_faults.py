"""WebHDFS servers that misbehave, by a small HTTP server in front of nothing or of the real one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from airflow_tf.core.errors import StorageError, StoragePermissionError, StorageUnavailableError
from airflow_tf.storage import webhdfs
from airflow_tf.storage.base import FileSystem, Uri
from airflow_tf.storage.failures import java_error
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.webhdfs import WebHdfsFileSystem, _Avoided
from airflow_tf.testing.hdfs import HdfsCluster
from tests.storage.storage_helpers import Staging


@contextmanager
def server(answers: list[tuple[int, dict[str, str]]]) -> Iterator[str]:
    """Give ``answers`` (status, headers) in turn, the last one for ever."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers = answers[0] if len(answers) == 1 else answers.pop(0)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value.replace("{path}", self.path))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def opened(address: str) -> WebHdfsFileSystem:
    uri = f"webhdfs://{address}/"
    return WebHdfsFileSystem(Uri.parse(uri), StorageOptions.from_uri(uri))


def test_a_datanode_whose_name_does_not_resolve_is_named() -> None:
    with (
        server([(307, {"Location": "http://dn-7.invalid:9864/webhdfs/v1/x?op=OPEN"})]) as address,
        pytest.raises(StorageUnavailableError, match=r"redirected to DataNode dn-7\.invalid:9864"),
    ):
        list(opened(address).read("/x", 0, 10))


def test_a_host_that_failed_is_avoided_for_a_while_if_another_is_known() -> None:
    now = [0.0]
    avoided = _Avoided(lambda: now[0])
    avoided.add("dn1")
    assert avoided.names() == ""
    avoided.saw("dn1")
    avoided.saw("dn2")
    assert avoided.names() == "dn1"
    now[0] = 61.0
    assert avoided.names() == ""


@pytest.mark.parametrize(
    ("java_class", "message"),
    [
        ("java.io.EOFException", "End of File Exception between local host is: dn1; destination host is: nn:8020"),
        ("java.net.ConnectException", "Call From dn1 to nn:8020 failed on connection exception"),
        ("java.io.IOException", "Failed on local exception: java.io.IOException: Connection reset by peer"),
        ("org.apache.hadoop.ipc.StandbyException", "Operation category READ is not supported in state standby"),
    ],
)
def test_a_server_that_has_lost_another_one_is_asked_again(java_class: str, message: str) -> None:
    assert java_error(java_class, message, "read", "webhdfs://nn/x").retryable
    assert not java_error("java.io.IOException", "Offset=9 out of the range", "read", "webhdfs://nn/x").retryable


def test_refused_credentials_are_a_permission_error() -> None:
    with server([(401, {})]) as address, pytest.raises(StoragePermissionError, match="Check your credentials"):
        opened(address).stat("/x")


@pytest.mark.hdfs
def test_a_server_that_is_busy_twice_is_asked_again(
    hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    hdfs.write(f"{folder}/1.csv", [b"hello"])
    with server([(503, {}), (503, {}), (307, {"Location": f"{hdfs_cluster.webhdfs_url}{{path}}"})]) as address:
        staged = staging(f"webhdfs://{address}{folder}")
    assert staged.total_bytes == 5
    assert sum("trying again in" in line for line in staging.lines) == 2


GARBAGE = (200, {"Content-Type": "text/html"})


@pytest.mark.parametrize("answer", [GARBAGE, (401, {}), (403, {}), (404, {}), (500, {}), (503, {})])
@pytest.mark.hdfs
def test_another_namenode_is_asked_whatever_the_first_one_answered(
    answer: tuple[int, dict[str, str]], hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    hdfs.write(f"{folder}/1.csv", [b"hello"])
    with server([answer]) as address:
        options = StorageOptions("webhdfs", url=f"http://{address};{hdfs_cluster.webhdfs_url}")
        assert staging(f"hdfs://cluster{folder}", options=options).total_bytes == 5


@pytest.mark.hdfs
def test_another_namenode_is_asked_where_the_name_of_the_first_one_does_not_exist_or_nobody_listens(
    hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    hdfs.write(f"{folder}/1.csv", [b"hello"])
    options = StorageOptions("webhdfs", url=f"http://nn.invalid:9870;http://127.0.0.1:1;{hdfs_cluster.webhdfs_url}")
    assert staging(f"hdfs://cluster{folder}", options=options).total_bytes == 5


def test_another_namenode_is_asked_where_the_first_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhdfs, "_TIMEOUT_SECONDS", (1.0, 1.0))
    # The kernel accepts and nobody answers; the other one's refusal shows that it was asked.
    with socket.create_server(("127.0.0.1", 0)) as silent, server([(401, {})]) as other:
        options = StorageOptions("webhdfs", url=f"http://127.0.0.1:{silent.getsockname()[1]};http://{other}")
        files = WebHdfsFileSystem(Uri.parse("hdfs://cluster/"), options)
        with pytest.raises(StorageError, match="Check your credentials"):
            files.stat("/x")


def test_credentials_that_every_namenode_refuses_are_refused() -> None:
    with server([(401, {})]) as one, server([(401, {})]) as other:
        files = WebHdfsFileSystem(
            Uri.parse("hdfs://cluster/"), StorageOptions("webhdfs", url=f"http://{one};http://{other}")
        )
        with pytest.raises(StorageUnavailableError):
            files.stat("/x")
        with pytest.raises(StoragePermissionError, match="Check your credentials"):
            files.stat("/x")
