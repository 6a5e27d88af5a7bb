"""Uploads of local files and folders: all or nothing, never over what is there unless asked."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_tf.core.errors import StorageError, StorageExistsError, StorageNotFoundError, StorageUnavailableError
from airflow_tf.storage import client
from airflow_tf.storage.base import FileInfo, FileSystem, Uri, exists, read_all
from airflow_tf.storage.local import LocalFileSystem
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.storage.registry import open_file_system
from airflow_tf.storage.uploading import Uploader
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


class Fault(LocalFileSystem):
    """At the rename of what was sent: nothing, an answer that is lost, or another upload that removes what was sent.

    ``lost`` has been renamed, ``removed`` and ``gone`` have not; ``gone`` is told as such, ``removed`` as unavailable.
    ``away`` is lost, and who looks then gets no answer either.
    """

    kind, replaced_by, is_away = "", b"", False

    def stat(self, path: str) -> FileInfo:
        if self.is_away:
            self.is_away = False
            raise StorageUnavailableError("away")
        return super().stat(path)

    def rename(self, source: str, target: str) -> None:
        if self.kind and "upload-new" in source:
            kind, self.kind = self.kind, ""
            self.is_away = kind == "away"
            if kind in {"lost", "away"}:
                super().rename(source, target)
            else:
                self.delete(source)
                if self.replaced_by:
                    self.write(target, [self.replaced_by])
            raise (StorageNotFoundError if kind == "gone" else StorageUnavailableError)("cut")
        super().rename(source, target)


def uploader(uri: str, files: Fault, events: int, *, overwrite: bool = True) -> Uploader:
    reporter = Reporter(events)
    return Uploader(Uri.parse(uri), files, reporter, Patience(20.0, reporter.note), overwrite)


@pytest.fixture
def events() -> Iterator[int]:
    with Path(os.devnull).open("wb") as file:
        yield file.fileno()


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_second_upload_that_is_killed_does_not_let_the_first_tell_of_success(
    tmp_path: Path, events: int, monkeypatch: pytest.MonkeyPatch, *, is_folder: bool
) -> None:
    old, new = (tmp_path / "old" / "f", tmp_path / "new" / "f") if is_folder else (tmp_path / "old", tmp_path / "new")
    for path in (old, new):
        path.parent.mkdir(exist_ok=True)
        path.write_text(path.relative_to(tmp_path).parts[0])
    uri = f"file://{tmp_path}/old"
    files = Fault(Uri.parse(uri), StorageOptions.from_uri(uri))
    first, send = uploader(uri, files, events), Uploader._send

    def send_and_lose(*arguments: Any) -> None:
        send(*arguments)
        uploader(uri, files, events)._remove_leftovers("new")  # all that a second upload does before it is killed

    monkeypatch.setattr(Uploader, "_send", send_and_lose)
    with pytest.raises(StorageError, match="not whole any more"):
        first.run(tmp_path / "new")
    assert old.read_text() == "old"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["lost", "away", "removed", "gone"])
@pytest.mark.parametrize("other", [b"", b"of another"])
def test_only_what_has_arrived_is_told_after_a_rename_without_an_answer(
    tmp_path: Path, events: int, kind: str, other: bytes, *, overwrite: bool
) -> None:
    (tmp_path / "new").write_bytes(b"new")
    if overwrite:
        (tmp_path / "x").write_bytes(b"old")
    uri = f"file://{tmp_path}/x"
    files = Fault(Uri.parse(uri), StorageOptions.from_uri(uri))
    files.kind, files.replaced_by = kind, other
    upload = uploader(uri, files, events, overwrite=overwrite)
    if kind in {"lost", "away"}:
        assert upload.run(tmp_path / "new")["bytes"] == 3
        assert {path.name for path in tmp_path.iterdir()} == {"x", "new"}
        assert (tmp_path / "x").read_bytes() == b"new"
        return
    with pytest.raises(StorageError, match=r"not whole any more|cut"):
        upload.run(tmp_path / "new")
    left = (tmp_path / "x").read_bytes() if (tmp_path / "x").exists() else b""
    assert left == other or (left == b"old" and overwrite)


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
