from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import IO

import google_crc32c
import pytest

from airflow_tf.core.errors import StorageNoSpaceError
from airflow_tf.storage import cache as cache_module
from airflow_tf.storage.cache import Cache

KEYS = [f"{number:040x}" for number in range(8)]


def make(folder: Path, budget: int = 1000, boot: str = "boot0001") -> Cache:
    return Cache(folder / "cache", budget, boot, lambda: None)


def filler(data: bytes):
    def fill(file: IO[bytes], _journal: Path) -> int:
        os.pwrite(file.fileno(), data, 0)
        return google_crc32c.value(data)

    return fill


def put(cache: Cache, key: str, target: Path, data: bytes = b"x" * 100) -> bool:
    return not cache.place(key, len(data), target, filler(data)).was_cached


def test_the_second_use_copies_nothing_and_shares_the_bytes(tmp_path: Path) -> None:
    cache = make(tmp_path)
    assert put(cache, KEYS[0], tmp_path / "a")
    assert not put(cache, KEYS[0], tmp_path / "b")
    assert (tmp_path / "a").samefile(tmp_path / "b")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o444
    assert list((tmp_path / "cache" / "partial").iterdir()) == []


def test_the_least_recently_used_goes_first_and_what_a_run_holds_stays(tmp_path: Path) -> None:
    cache = make(tmp_path, budget=350)
    for index in range(3):
        put(cache, KEYS[index], tmp_path / str(index))
        os.utime(tmp_path / str(index), (index + 1, index + 1))
    (tmp_path / "1").unlink()
    (tmp_path / "2").unlink()
    cache.find(KEYS[1])  # used again, so 2 is now the oldest that no run holds
    cache.make_room(100, set())
    assert [cache.find(key) is not None for key in KEYS[:3]] == [True, True, False]
    cache.make_room(1000, {KEYS[1]})
    assert [cache.find(key) is not None for key in KEYS[:3]] == [True, True, False]
    cache.make_room(1000, set())
    assert [cache.find(key) is not None for key in KEYS[:3]] == [True, False, False]
    assert (tmp_path / "0").read_bytes() == b"x" * 100


def test_an_entry_of_another_boot_is_used_only_if_its_checksum_holds(tmp_path: Path) -> None:
    old = make(tmp_path, boot="boot0001")
    put(old, KEYS[0], tmp_path / "good")
    put(old, KEYS[1], tmp_path / "bad")
    (tmp_path / "bad").chmod(0o644)
    (tmp_path / "bad").write_bytes(b"\0" * 100)

    new = make(tmp_path, boot="boot0002")
    assert new.find(KEYS[0]) is not None
    assert new.find(KEYS[1]) is None
    assert put(new, KEYS[1], tmp_path / "fresh")
    assert (tmp_path / "fresh").read_bytes() == b"x" * 100


def test_a_small_disk_is_named_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "free_bytes", lambda _folder: 50)
    with pytest.raises(StorageNoSpaceError, match=r"2\.0 KiB are needed, 50 B are free"):
        make(tmp_path).make_room(2048, set())


def test_unused_entries_give_way_when_the_disk_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make(tmp_path, budget=10**9)
    put(cache, KEYS[0], tmp_path / "a")
    (tmp_path / "a").unlink()
    monkeypatch.setattr(cache_module, "free_bytes", lambda _folder: 150 - 100 * (cache.find(KEYS[0]) is not None))
    cache.make_room(120, set())
    assert cache.find(KEYS[0]) is None


def test_a_disk_that_fills_up_between_check_and_copy_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    cache = make(tmp_path)
    with pytest.raises(StorageNoSpaceError, match="too small"):
        put(cache, KEYS[0], tmp_path / "a")
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
    assert not (tmp_path / "a").exists()


def test_a_failed_copy_leaves_nothing(tmp_path: Path) -> None:
    def broken(file: IO[bytes], _journal: Path) -> int:
        file.write(b"half")
        raise RuntimeError("broken")

    cache = make(tmp_path)
    with pytest.raises(RuntimeError, match="broken"):
        cache.place(KEYS[0], 100, tmp_path / "a", broken)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_where_links_are_impossible_the_file_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    cache = make(tmp_path)
    put(cache, KEYS[0], tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"x" * 100
    assert (tmp_path / "a").stat().st_nlink == 1
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o444


def test_abandoned_partial_files_are_removed_and_live_ones_stay(tmp_path: Path) -> None:
    cache = make(tmp_path)
    abandoned = tmp_path / "cache" / "partial" / KEYS[0]
    abandoned.write_bytes(b"half")
    orphan = tmp_path / "cache" / "partial" / f"{KEYS[2]}.done"
    orphan.write_bytes(b"of nothing")
    wanted = tmp_path / "cache" / "partial" / KEYS[3]
    wanted.write_bytes(b"half")

    def fill(file: IO[bytes], _journal: Path) -> int:
        make(tmp_path).remove_abandoned({KEYS[3]})
        assert (tmp_path / "cache" / "partial" / KEYS[1]).exists()
        os.pwrite(file.fileno(), b"y", 0)
        return google_crc32c.value(b"y")

    cache.place(KEYS[1], 1, tmp_path / "a", fill)
    assert [path.name for path in (tmp_path / "cache" / "partial").iterdir()] == [wanted.name]
    assert (tmp_path / "a").read_bytes() == b"y"
