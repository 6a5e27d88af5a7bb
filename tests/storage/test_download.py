"""Copies by ranges: cut, shared between threads, continued."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tf.core.errors import SourceChangedError, StorageUnavailableError
from airflow_tf.storage import download
from airflow_tf.storage.base import Uri
from airflow_tf.storage.checksum import FileChecksum
from airflow_tf.storage.crew import Crew
from airflow_tf.storage.download import Download, Source, ranges, read_journal
from airflow_tf.storage.local import LocalFileSystem
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Patience, Reporter


class Recorded(LocalFileSystem):
    """Fails from the ``broken`` offset on, and keeps which ranges were read."""

    broken: int | None = None
    known: FileChecksum | None = None

    def __init__(self) -> None:
        super().__init__(Uri.parse("file:///"), StorageOptions("file"))
        self.read_ranges: list[tuple[int, int]] = []

    def read(self, path: str, offset: int, length: int):
        self.read_ranges.append((offset, length))
        if self.broken is not None and offset >= self.broken:
            raise StorageUnavailableError("broken")
        yield from super().read(path, offset, length)

    def checksum(self, _path: str) -> FileChecksum | None:
        return self.known


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setattr(download, "RANGE_BYTES", 1000)
    monkeypatch.setattr(download, "ranges", lambda size: ranges(size, 1000))
    return Recorded()


def copy(files: Recorded, source: Path, target: Path, boot: str = "boot0001") -> int:
    """Copy one file with three threads and return its CRC32C."""
    found: list[int] = []
    with Path(os.devnull).open("wb") as events, target.open("r+b" if target.exists() else "w+b") as file:
        reporter = Reporter(events.fileno())
        crew = Crew(3)
        origin = Source(Uri.parse("file:///"), files, reporter, Patience(0.0, reporter.note), crew, boot)
        job = Download(origin, files.stat(str(source)))
        crew.run(iter([lambda: found.append(job(file, target.with_suffix(".done")))]), reporter.cancel)
    return found[0]


@given(st.integers(0, 10_000), st.integers(1, 3000))
def test_ranges_cover_a_file_once(size: int, range_bytes: int) -> None:
    cut = ranges(size, range_bytes)
    assert [part.offset for part in cut] == [number * range_bytes for number in range(len(cut))]
    assert sum(part.length for part in cut) == size
    assert all(part.length > 0 or size == 0 for part in cut)
    assert all(part.length <= range_bytes for part in cut)


def test_a_file_of_many_ranges_is_whole_and_its_checksum_right(files: Recorded, tmp_path: Path) -> None:
    data = os.urandom(10_500)
    (tmp_path / "source").write_bytes(data)
    assert copy(files, tmp_path / "source", tmp_path / "copy") == google_crc32c.value(data)
    assert (tmp_path / "copy").read_bytes() == data
    assert len(files.read_ranges) == 11


@pytest.mark.parametrize("lost", ["", "boot", "file"])
def test_only_what_is_missing_is_copied_after_a_failure(files: Recorded, tmp_path: Path, lost: str) -> None:
    data = os.urandom(10_500)
    (tmp_path / "source").write_bytes(data)
    files.broken = 5000
    with pytest.raises(StorageUnavailableError, match="broken"):
        copy(files, tmp_path / "source", tmp_path / "copy")
    done = set(files.read_ranges) - {(offset, length) for offset, length in files.read_ranges if offset >= 5000}
    assert len(done) == 5
    files.broken, files.read_ranges = None, []
    if lost == "file":
        (tmp_path / "copy").rename(tmp_path / "gone")  # kept, so that its inode is not used again
    boot = "boot0002" if lost == "boot" else "boot0001"
    assert copy(files, tmp_path / "source", tmp_path / "copy", boot) == google_crc32c.value(data)
    assert (tmp_path / "copy").read_bytes() == data
    assert len(files.read_ranges) == (11 if lost else 6)


def test_a_journal_that_was_cut_counts_only_whole_lines() -> None:
    assert read_journal("head\n0 00000001\n1000 000000", "head") == {0: 1}
    assert read_journal("head\n0 00000001\n", "other") == {}
    assert read_journal("", "head") == {}


def test_a_checksum_of_the_source_that_differs_is_an_error(files: Recorded, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * 1500)
    good = google_crc32c.value(b"x" * 1500)
    files.known = FileChecksum("COMPOSITE-CRC32C", good.to_bytes(4, "big"), 1000)
    assert copy(files, tmp_path / "source", tmp_path / "copy") == good
    files.known = FileChecksum("COMPOSITE-CRC32C", (good ^ 1).to_bytes(4, "big"), 1000)
    with pytest.raises(SourceChangedError, match="was not copied as it is"):
        copy(files, tmp_path / "source", tmp_path / "copy")


def test_idle_threads_help_with_the_pieces_of_a_task() -> None:
    crew = Crew(3)
    together = threading.Barrier(3, timeout=20)
    crew.run(iter([lambda: crew.share([together.wait] * 3)]), lambda: None)  # type: ignore[list-item]


def test_after_a_failed_piece_no_other_is_started_and_the_error_is_raised_once() -> None:
    crew, ran, cancelled = Crew(1), list[int](), list[bool]()

    def piece(number: int) -> None:
        ran.append(number)
        if number == 1:
            raise ValueError("piece 1")

    with pytest.raises(ValueError, match="piece 1"):
        crew.run(
            iter([lambda: crew.share([lambda n=n: piece(n) for n in range(4)]), lambda: ran.append(9)]),
            lambda: cancelled.append(True),
        )
    assert (ran, cancelled) == ([0, 1], [True])
