"""What lies in a staging cache: entries by their names, whether their bytes are whole, and which may go."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from airflow_tf.storage.base import CHUNK_BYTES

STAMP_NS = 946_684_800 * 10**9
"""Modification time of every cached file (2000-01-01): one that has another was written to since it was copied."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One file of the cache: key, CRC32C, boot of its writer, size, last use, and how many runs hold it."""

    path: Path
    key: str
    crc32c: int
    boot: str
    size: int
    used_at: float
    holders: int


def cache_entries(folder: Path) -> Iterator[CacheEntry]:
    """Yield the entries of the cache in ``folder``, in no particular order; none if there is no cache."""
    for path in (folder / "entries").glob("??/*"):
        key, crc32c, boot = path.name.split(".")
        with contextlib.suppress(FileNotFoundError):  # removed by another process meanwhile
            status = path.stat()
            yield CacheEntry(
                path, key, int(crc32c, 16), boot, status.st_size, status.st_atime, holders=status.st_nlink - 1
            )


def checksum(path: Path, tick: Callable[[], None]) -> int:
    """Return the CRC32C of a file's bytes as they are now."""
    crc32c = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            crc32c = google_crc32c.extend(crc32c, chunk)
            tick()
    return crc32c


def stamp(file: Path | str | int) -> None:
    """Note on a whole file (a path or a descriptor) that it is used now, and that nobody has written to it since."""
    os.utime(file, ns=(time.time_ns(), STAMP_NS))


def removable(found: Iterable[CacheEntry], used_before: float) -> list[CacheEntry]:
    """Return what no run holds and nobody has used since ``used_before``, the oldest first."""
    unused = [entry for entry in found if not entry.holders and entry.used_at < used_before]
    return sorted(unused, key=lambda entry: entry.used_at)
