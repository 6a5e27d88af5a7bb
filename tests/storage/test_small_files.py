"""Many small files: by the folder, without a lock or a question for each."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tf.core.errors import (
    StorageNoSpaceError,
    StorageNotFoundError,
    StoragePermissionError,
    StorageUnavailableError,
)
from airflow_tf.core.manifest import StagedInput
from airflow_tf.storage.base import FileInfo, Uri
from airflow_tf.storage.cache import Cache, boot_id
from airflow_tf.storage.checksum import FileChecksum
from airflow_tf.storage.local import LocalFileSystem
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.storage.small_files import SMALL_BYTES, Wanted, batches
from airflow_tf.storage.staging import Stager
from tests.storage.storage_helpers import Staging


class Counted(LocalFileSystem):
    """Counts what is asked of it; ``failures`` reads and ``busy`` checksums fail; ``wrong`` have a wrong checksum."""

    failures = 0
    wrong: frozenset[str] = frozenset()
    busy = 0

    def __init__(self, uri: Uri, options: StorageOptions) -> None:
        super().__init__(uri, options)
        self.asked: Counter[str] = Counter()

    def stat(self, path: str) -> FileInfo:
        self.asked["stat"] += 1
        return super().stat(path)

    def list(self, path: str) -> Iterator[FileInfo]:
        self.asked["list"] += 1
        return super().list(path)

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        self.asked["read"] += 1
        if self.failures:
            self.failures -= 1
            raise StorageUnavailableError("broken")
        return super().read(path, offset, length)

    def checksum(self, path: str) -> FileChecksum | None:
        if self.busy:
            self.busy -= 1
            raise StorageUnavailableError("busy")
        if Path(path).name not in self.wrong:
            return None
        self.wrong -= {Path(path).name}
        return FileChecksum("COMPOSITE-CRC32C", b"\0" * 4, 1000)


def fill(source: Path, folders: int, files: int) -> dict[str, bytes]:
    data = {f"{f:02}/{n:03}": os.urandom(1 + n) for f in range(folders) for n in range(files)}
    for name, content in data.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(content)
    return data


def stage(files: Counted, uri: Uri, folder: Path, run: str = "run") -> StagedInput:
    with Path(os.devnull).open("wb") as events:
        reporter = Reporter(events.fileno())
        cache = Cache(folder / "cache", 2**30, boot_id(), reporter.tick)
        patience = Patience(20.0, reporter.note)
        stager = Stager(uri, StorageOptions("file"), files, cache, reporter, patience)
        return stager.run(folder / run / "data")


@pytest.fixture
def files(source: Path) -> Counted:
    return Counted(Uri.parse(source.as_uri()), StorageOptions("file"))


@given(st.lists(st.integers(0, 5), max_size=300), st.integers(1, 20))
def test_batches_hold_every_file_once_and_files_of_one_folder_each(folders: list[int], share: int) -> None:
    wanted = [Wanted(str(n), FileInfo(f"/{f}/{n}", 1, is_dir=False, mtime_ms=1), "") for n, f in enumerate(folders)]
    siblings = {f"/{f}": 1000 + f for f in folders}
    cut = list(batches(wanted, share, siblings))
    assert sorted(file.name for batch in cut for file in batch.files) == sorted(file.name for file in wanted)
    for batch in cut:
        assert {str(Path(file.info.path).parent) for file in batch.files} == {batch.folder}
        assert len(batch.files) <= min(128, 1 + len(folders) // share)
        assert batch.siblings == siblings[batch.folder]


def test_small_files_are_whole_shared_with_the_cache_and_cost_one_question_a_folder(
    files: Counted, source: Path, tmp_path: Path
) -> None:
    data = fill(source, folders=3, files=40)
    (source / "large").write_bytes(data_of_large := os.urandom(SMALL_BYTES + 1))
    staged = stage(files, Uri.parse(source.as_uri()), tmp_path)
    assert {f.name: (Path(staged.folder) / f.name).read_bytes() for f in staged.files} == data | {
        "large": data_of_large
    }
    for file in staged.files:
        path = Path(staged.folder) / file.name
        assert file.crc32c == google_crc32c.value(path.read_bytes())
        assert (path.stat().st_nlink, path.stat().st_mode & 0o777) == (2, 0o444)
    assert (staged.copied_bytes, staged.cached_bytes) == (staged.total_bytes, 0)
    assert list((tmp_path / "cache" / "partial").iterdir()) == []
    assert files.asked["read"] == 121
    assert files.asked["stat"] <= 4  # of the source and of what is large
    assert files.asked["list"] <= 4 + 20  # to see what there is, and once a batch
    files.asked.clear()
    again = stage(files, Uri.parse(source.as_uri()), tmp_path, "second")
    assert (again.copied_bytes, files.asked["read"], files.asked["list"]) == (0, 0, 4)


def test_a_few_files_of_a_large_folder_are_asked_for_by_name(files: Counted, source: Path, tmp_path: Path) -> None:
    fill(source, folders=1, files=120)
    staged = stage(files, Uri.parse(f"{source.as_uri()}/00/00*"), tmp_path)
    assert len(staged.files) == 10
    assert files.asked["list"] == 1
    assert files.asked["stat"] >= 10


def test_a_few_new_files_of_a_cached_tree_are_asked_for_by_name(files: Counted, source: Path, tmp_path: Path) -> None:
    fill(source, folders=1, files=60)
    stage(files, Uri.parse(source.as_uri()), tmp_path)
    (source / "00" / "new").write_bytes(b"new")
    files.asked.clear()
    stage(files, Uri.parse(source.as_uri()), tmp_path, "second")
    assert files.asked == {"list": 2, "stat": 2, "read": 1}  # the tree is listed once; then the source and the new file


def test_a_single_file_is_staged_from_a_folder_that_must_not_be_listed(
    files: Counted, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "one").write_bytes(b"one")

    def refuse(_self: Counted, path: str) -> Iterator[FileInfo]:
        raise StoragePermissionError(f"Cannot list {path}")

    monkeypatch.setattr(Counted, "list", refuse)
    staged = stage(files, Uri.parse(f"{source.as_uri()}/one"), tmp_path)
    assert (Path(staged.folder) / "one").read_bytes() == b"one"


def test_what_one_try_has_copied_the_next_does_not_copy(files: Counted, source: Path, tmp_path: Path) -> None:
    data = fill(source, folders=20, files=20)
    (source / "zz").mkdir()
    (source / "zz" / "gone").symlink_to("nowhere")
    with pytest.raises(StorageNotFoundError, match="gone"):
        stage(files, Uri.parse(source.as_uri()), tmp_path)
    (source / "zz" / "gone").unlink()
    done = files.asked["read"]
    staged = stage(files, Uri.parse(source.as_uri()), tmp_path)
    assert done < files.asked["read"] + 1 < 2 * len(data)
    assert {f.name: (Path(staged.folder) / f.name).read_bytes() for f in staged.files} == data


def test_a_broken_read_is_repeated_from_the_file_that_broke(files: Counted, source: Path, tmp_path: Path) -> None:
    data = fill(source, folders=1, files=10)
    files.failures = 1
    staged = stage(files, Uri.parse(source.as_uri()), tmp_path)
    assert len(staged.files) == len(data)
    assert files.asked["read"] == len(data) + 1


def test_a_checksum_that_cannot_be_had_at_once_is_asked_for_again(
    files: Counted, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, opened, open_file = fill(source, folders=1, files=3), list[int](), os.open

    def watched(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TRUNC and Path(path).exists():
            opened.append(Path(path).stat().st_mode & 0o777)
        return open_file(path, flags, mode)

    monkeypatch.setattr(os, "open", watched)
    files.busy = 1
    assert len(stage(files, Uri.parse(source.as_uri()), tmp_path).files) == len(data)
    assert opened == [0o600]  # a user who is not root cannot open one that is read-only


def test_a_copy_with_another_checksum_than_the_source_is_copied_again(
    files: Counted, source: Path, tmp_path: Path
) -> None:
    data = fill(source, folders=1, files=10)
    files.wrong = frozenset({"003"})
    staged = stage(files, Uri.parse(source.as_uri()), tmp_path)
    assert {f.name: (Path(staged.folder) / f.name).read_bytes() for f in staged.files} == data
    assert files.asked["read"] == len(data) + 1


def test_where_a_file_cannot_have_two_names_it_is_copied(
    files: Counted, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = fill(source, folders=1, files=10)

    def refuse(source: object, target: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link", str(source), None, str(target))

    monkeypatch.setattr(os, "link", refuse)
    staged = stage(files, Uri.parse(source.as_uri()), tmp_path)
    assert {f.name: (Path(staged.folder) / f.name).read_bytes() for f in staged.files} == data
    assert len(list((tmp_path / "cache" / "entries").rglob("*.*"))) == len(data)


def test_of_two_that_copy_the_same_file_the_second_takes_the_entry_of_the_first(tmp_path: Path) -> None:
    cache, key = Cache(tmp_path / "cache", 1000, "boot0001", lambda: None), "ab" * 20
    for name in ("first", "second"):
        (tmp_path / name).write_bytes(b"same")
        cache.adopt(key, google_crc32c.value(b"same"), str(tmp_path / name))
    assert (tmp_path / "first").samefile(tmp_path / "second")
    assert (tmp_path / "first").stat().st_nlink == 3


def test_an_entry_that_is_removed_while_it_is_taken_is_copied_again(
    files: Counted, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = fill(source, folders=1, files=3)

    def lost(_self: Cache, _key: str, _crc32c: int, path: str) -> None:
        Path(path).unlink()
        raise FileNotFoundError(errno.ENOENT, "gone", path)

    monkeypatch.setattr(Cache, "adopt", lost)
    staged = stage(files, Uri.parse(source.as_uri()), tmp_path)
    assert {f.name: (Path(staged.folder) / f.name).read_bytes() for f in staged.files} == data


def test_a_disk_that_fills_up_is_named(staging: Staging, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(source, folders=1, files=3)
    files = Counted(Uri.parse(source.as_uri()), StorageOptions("file"))

    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(StorageNoSpaceError, match=r"disk of .*cache is too small"):
        stage(files, Uri.parse(source.as_uri()), staging.folder)
    assert staging.cached() == []
