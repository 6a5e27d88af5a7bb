"""Uploads of local files and folders: all or nothing, never over what is there unless asked."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_tf.core.errors import StorageExistsError, StorageNotFoundError, StorageUnavailableError
from airflow_tf.storage import client
from airflow_tf.storage.base import FileSystem, Uri, exists, read_all
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.registry import open_file_system
from airflow_tf.testing.hdfs import HdfsCluster
from airflow_tf.transfers.local_to_hdfs import LocalToHdfsOperator

ON_HDFS = [pytest.param(kind, marks=pytest.mark.hdfs) for kind in ("hdfs", "webhdfs")]


@pytest.fixture(params=["file", *ON_HDFS])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty folder on a file system of each kind."""
    if request.param == "file":
        (tmp_path / "store").mkdir()
        yield f"file://{tmp_path}/store"
        return
    cluster: HdfsCluster = request.getfixturevalue("hdfs_cluster")
    root = cluster.uri if request.param == "hdfs" else cluster.webhdfs_url.replace("http", "webhdfs")
    uri = f"{root}/upload/{uuid.uuid4().hex}"
    opened(uri).make_dirs(Uri.parse(uri).path)
    yield uri
    opened(uri).delete(Uri.parse(uri).path)


def opened(uri: str) -> FileSystem:
    return open_file_system(Uri.parse(uri), StorageOptions.from_uri(uri))


def content(uri: str) -> dict[str, bytes]:
    """Return all files below a folder, hidden ones too."""
    files, root = opened(uri), Uri.parse(uri).path

    def walk(path: str) -> Iterator[tuple[str, bytes]]:
        for info in files.list(path):
            if info.is_dir:
                yield from walk(info.path)
            else:
                yield info.path.removeprefix(f"{root}/"), read_all(files, info.path)

    return dict(walk(root))


def upload(local: Path, uri: str, *, overwrite: bool = False, **changes: object) -> dict[str, object]:
    options = replace(StorageOptions.from_uri(uri), **changes)
    return client.upload(local, uri, options=options, overwrite=overwrite, on_progress=lambda _text: None)


def test_a_file_gets_its_name_only_when_it_is_whole_and_is_not_replaced_unasked(base: str, tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"first")
    sent = upload(tmp_path / "model.bin", f"{base}/sub/model.bin")
    assert sent == {"destination": f"{base}/sub/model.bin", "files": 1, "bytes": 5}
    (tmp_path / "model.bin").write_bytes(b"second")
    with pytest.raises(StorageExistsError, match=r"sub/model\.bin exists"):
        upload(tmp_path / "model.bin", f"{base}/sub/model.bin")
    assert content(base) == {"sub/model.bin": b"first"}
    upload(tmp_path / "model.bin", f"{base}/sub/model.bin", overwrite=True)
    assert content(base) == {"sub/model.bin": b"second"}


def test_a_folder_is_sent_with_all_below_it_and_replaced_as_a_whole(base: str, tmp_path: Path) -> None:
    data = {"a b=1/x": b"1" * 3_000_000, "y": b"", "z": b"3"}
    for name, each in data.items():
        (tmp_path / "local" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / name).write_bytes(each)
    upload(tmp_path / "local", f"{base}/v1")
    assert content(f"{base}/v1") == data
    (tmp_path / "local" / "z").unlink()
    upload(tmp_path / "local", f"{base}/v1", overwrite=True)
    assert content(f"{base}/v1") == {name: data[name] for name in ("a b=1/x", "y")}
    assert {name.partition("/")[0] for name in content(base)} == {"v1"}


def test_what_a_killed_upload_left_is_removed_by_the_next(base: str, tmp_path: Path) -> None:
    files, root = opened(base), Uri.parse(base).path
    files.write(f"{root}/.airflow_tf-upload-new-x-0123456789ab", [b"half"])
    files.write(f"{root}/.airflow_tf-upload-new-other-0123456789ab", [b"of another"])
    (tmp_path / "x").write_bytes(b"whole")
    upload(tmp_path / "x", f"{base}/x")
    assert content(base) == {"x": b"whole", ".airflow_tf-upload-new-other-0123456789ab": b"of another"}


def test_nothing_to_upload_is_an_error(base: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        with pytest.raises(StorageNotFoundError, match=f"{name} has nothing to upload"):
            upload(tmp_path / name, f"{base}/x")
    assert not exists(opened(base), f"{Uri.parse(base).path}/x")


@pytest.mark.hdfs
@pytest.mark.parametrize("kind", ["hdfs", "webhdfs"])
def test_replication_and_block_size_are_as_asked(
    kind: str, hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, tmp_path: Path
) -> None:
    import hdfs_native

    (tmp_path / "x").write_bytes(b"x" * 100_000)
    base = hdfs_cluster.uri if kind == "hdfs" else hdfs_cluster.webhdfs_url.replace("http", "webhdfs")
    upload(tmp_path / "x", f"{base}{folder}/x", replication=1, block_bytes=2**16)
    status = hdfs_native.Client(hdfs_cluster.uri).get_file_info(f"{folder}/x")
    assert (status.replication, status.blocksize, status.length) == (1, 2**16, 100_000)


@pytest.mark.hdfs
def test_an_upload_to_a_namenode_that_is_stopped_for_ever_ends(
    hdfs_cluster: HdfsCluster, folder: str, tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(b"x")
    uri = f"{hdfs_cluster.uri}{folder}/x"
    hdfs_cluster.pause("namenode")
    try:
        with pytest.raises(StorageUnavailableError, match="did not answer for 3 s"):
            client.upload(
                tmp_path / "x",
                uri,
                options=StorageOptions.from_uri(uri),
                overwrite=False,
                on_progress=lambda _text: None,
                stall_seconds=3.0,
            )
    finally:
        hdfs_cluster.resume("namenode")
        hdfs_cluster.wait_ready()


def test_the_operator_uploads_and_returns_what_it_sent(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    operator = LocalToHdfsOperator(
        task_id="up", source=str(tmp_path / "x"), destination=f"file://{tmp_path}/y", replication="2", block_size="1MiB"
    )
    assert operator.get_openlineage_facets_on_complete(None) is None
    assert operator.execute({}) == {"destination": f"file://{tmp_path}/y", "files": 1, "bytes": 1}
    assert (tmp_path / "y").read_bytes() == b"x"
