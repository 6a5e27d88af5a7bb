"""One suite over all backends: what staging and publishing rely on."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from airflow_tf.core.errors import (
    AirflowTfError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StoragePermissionError,
    StorageUnavailableError,
)
from airflow_tf.storage.base import FileSystem, Uri, exists, read_all
from airflow_tf.storage.checksum import agrees
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.registry import open_file_system
from airflow_tf.storage.webhdfs import WebHdfsFileSystem
from airflow_tf.testing.hdfs import HdfsCluster

ON_HDFS = [pytest.param(name, marks=pytest.mark.hdfs) for name in ("hdfs", "webhdfs")]
ON_ANY_HDFS = [*ON_HDFS, pytest.param("viewfs", marks=pytest.mark.hdfs)]


def open_backend(backend: str, cluster: HdfsCluster, user: str | None = None) -> FileSystem:
    if backend == "viewfs":
        table = {"fs.viewfs.mounttable.cluster.link./contract": f"{cluster.uri}/contract/viewed"}
        return open_file_system(Uri.parse("viewfs://cluster/"), StorageOptions("hdfs", config=table))
    uri = cluster.uri if backend == "hdfs" else cluster.webhdfs_url.replace("http", "webhdfs")
    options = StorageOptions.from_uri(f"{uri}/")
    if user:
        options = StorageOptions.from_json(options.to_json() | {"user": user})
    return open_file_system(Uri.parse(f"{uri}/"), options)


@pytest.fixture(params=["file", *ON_ANY_HDFS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[FileSystem, str]]:
    """A file system of each kind and an empty folder on it."""
    if request.param == "file":
        yield open_file_system(Uri.parse("file:///"), StorageOptions("file")), str(tmp_path)
        return
    files = open_backend(request.param, request.getfixturevalue("hdfs_cluster"))
    folder = f"/contract/{uuid.uuid4().hex}"
    files.make_dirs(folder)
    yield files, folder
    files.delete(folder)


def test_a_written_file_is_read_back_whole_and_by_range(place: tuple[FileSystem, str]) -> None:
    files, folder = place
    data = os.urandom(3_000_001)
    assert files.write(f"{folder}/a", [data[:1_000_000], data[1_000_000:]]) == len(data)
    info = files.stat(f"{folder}/a")
    assert (info.size, info.is_dir) == (len(data), False)
    assert info.mtime_ms > 0
    assert read_all(files, f"{folder}/a") == data
    assert b"".join(files.read(f"{folder}/a", 2_999_990, 5)) == data[2_999_990:2_999_995]


def test_a_checksum_of_the_server_agrees_with_the_right_bytes_only(
    place: tuple[FileSystem, str], tmp_path: Path
) -> None:
    files, folder = place
    for size in (0, 700, 20_000_000):  # nothing, less than a block, three blocks
        data = os.urandom(size)
        files.write(f"{folder}/{size}", [data])
        known = files.checksum(f"{folder}/{size}")
        if known is None:
            assert not isinstance(files, WebHdfsFileSystem)
            continue
        copy = tmp_path / "copy"
        copy.write_bytes(data)
        with copy.open("r+b") as file:
            assert agrees(known, file.fileno(), size, google_crc32c.value(data), lambda: None)
            if size:
                os.pwrite(file.fileno(), bytes([data[-1] ^ 1]), size - 1)
                assert not agrees(known, file.fileno(), size, 0, lambda: None)


def test_a_range_past_the_end_is_short_not_an_error(place: tuple[FileSystem, str]) -> None:
    files, folder = place
    files.write(f"{folder}/a", [b"12345"])
    assert b"".join(files.read(f"{folder}/a", 3, 100)) == b"45"
    files.write(f"{folder}/empty", [])
    assert list(files.read(f"{folder}/empty", 0, 10)) == []


def test_writing_replaces(place: tuple[FileSystem, str]) -> None:
    files, folder = place
    files.write(f"{folder}/a", [b"long old content"])
    files.write(f"{folder}/a", [b"new"])
    assert read_all(files, f"{folder}/a") == b"new"


def test_a_failed_write_leaves_nothing(place: tuple[FileSystem, str]) -> None:
    files, folder = place

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise AirflowTfError("the source broke")

    with pytest.raises(AirflowTfError, match="the source broke"):
        files.write(f"{folder}/a", broken())
    assert not exists(files, f"{folder}/a")


@pytest.mark.parametrize("name", ["day=2015-06-17", "with space", "ümlaut", "per%20cent", "a+b", "q?uestion", "h#ash"])
def test_names_are_taken_literally(place: tuple[FileSystem, str], name: str) -> None:
    files, folder = place
    files.make_dirs(f"{folder}/{name}")
    files.write(f"{folder}/{name}/000000_0", [b"x"])
    assert [info.path for info in files.list(folder)] == [f"{folder}/{name}"]
    assert [info.path for info in files.list(f"{folder}/{name}")] == [f"{folder}/{name}/000000_0"]
    assert read_all(files, f"{folder}/{name}/000000_0") == b"x"


def test_listing_tells_files_from_directories(place: tuple[FileSystem, str]) -> None:
    files, folder = place
    files.make_dirs(f"{folder}/d/e")
    files.write(f"{folder}/f", [b"abc"])
    listed = {info.path: (info.is_dir, info.size) for info in files.list(folder) if not info.is_dir}
    assert listed == {f"{folder}/f": (False, 3)}
    assert [info.path for info in files.list(folder) if info.is_dir] == [f"{folder}/d"]


def test_listing_a_file_is_an_error(place: tuple[FileSystem, str]) -> None:
    files, folder = place
    files.write(f"{folder}/f", [b"abc"])
    with pytest.raises(StorageError):
        list(files.list(f"{folder}/f"))


def test_missing_paths_are_named(place: tuple[FileSystem, str]) -> None:
    files, folder = place
    with pytest.raises(StorageNotFoundError, match="nothing-here"):
        files.stat(f"{folder}/nothing-here")
    with pytest.raises(StorageNotFoundError, match="nothing-here"):
        list(files.list(f"{folder}/nothing-here"))
    with pytest.raises(StorageNotFoundError, match="nothing-here"):
        list(files.read(f"{folder}/nothing-here", 0, 1))
    with pytest.raises(StorageError, match="nothing-here"):
        files.rename(f"{folder}/nothing-here", f"{folder}/b")
    files.delete(f"{folder}/nothing-here")


def test_rename_moves_a_directory_and_never_replaces_or_enters(place: tuple[FileSystem, str]) -> None:
    files, folder = place
    for name in ("new", "old"):
        files.make_dirs(f"{folder}/{name}")
        files.write(f"{folder}/{name}/f", [name.encode()])
    with pytest.raises(StorageExistsError):
        files.rename(f"{folder}/new", f"{folder}/old")
    assert read_all(files, f"{folder}/old/f") == b"old"
    assert [info.path for info in files.list(f"{folder}/old")] == [f"{folder}/old/f"]
    files.rename(f"{folder}/new", f"{folder}/moved")
    assert read_all(files, f"{folder}/moved/f") == b"new"
    assert not exists(files, f"{folder}/new")
    with pytest.raises(StorageExistsError):
        files.rename(f"{folder}/moved/f", f"{folder}/old/f")


def test_delete_takes_a_tree(place: tuple[FileSystem, str]) -> None:
    files, folder = place
    files.make_dirs(f"{folder}/d/e")
    files.write(f"{folder}/d/e/f", [b"abc"])
    files.delete(f"{folder}/d")
    assert list(files.list(folder)) == []


@pytest.mark.parametrize("backend", ON_HDFS)
def test_a_refused_user_is_a_permission_error(
    backend: str, hdfs_cluster: HdfsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_backend(backend, hdfs_cluster).make_dirs("/contract")
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    with pytest.raises(StoragePermissionError, match="alice"):
        open_backend(backend, hdfs_cluster, user="alice").write("/contract/forbidden", [b"x"])


@pytest.mark.parametrize("backend", ON_HDFS)
def test_a_dead_name_node_is_unavailable(backend: str, hdfs_cluster: HdfsCluster) -> None:
    files = open_backend(backend, hdfs_cluster)
    hdfs_cluster.kill("namenode")
    try:
        with pytest.raises(StorageUnavailableError, match=r"127\.0\.0\.1"):
            files.stat("/contract")
    finally:
        hdfs_cluster.restart("namenode")


@pytest.mark.parametrize("text", ["/data/x", "hdfs:/x", "hdfs://host", "data.csv", ""])
def test_what_is_no_uri_is_refused(text: str) -> None:
    with pytest.raises(AirflowTfError, match="is not a storage URI"):
        Uri.parse(text)


def test_uris_keep_glob_characters_and_decode_only_file_uris(tmp_path: Path) -> None:
    assert Uri.parse("hdfs://n:8020//a/b?/c=%20#/").path == "/a/b?/c=%20#"
    assert Uri.parse((tmp_path / "a b=c").as_uri()).path == str(tmp_path / "a b=c")


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(AirflowTfError, match=r"ftp.*Known are: file, hdfs, swebhdfs, viewfs, webhdfs"):
        open_file_system(Uri.parse("ftp://h/x"), StorageOptions.from_uri("ftp://h/x"))


def test_secrets_are_not_shown() -> None:
    options = StorageOptions("webhdfs", password="hunter2", headers={"Authorization": "hunter2"})
    assert "hunter2" not in repr(options)
