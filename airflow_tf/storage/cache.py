"""The staging cache: whole, read-only files addressed by what they are a copy of.

An entry appears by one rename under the name ``<key>.<crc32c>.<boot id>``, so it is never seen half-written and needs
no index. A file being written lies in ``partial/<key>`` under a lock that dies with its writer; ``partial/<key>.done``
tells the next writer what is there already. An entry is in use while it has more than one hard link. Nothing is
flushed to disk: an entry that another boot of the host wrote is read and compared with its checksum before its first
use, and so is one with another modification time than all have: a program has written into a file that was staged.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from airflow_tf.core.errors import CancelledError, StorageError, StorageNoSpaceError, StorageUnavailableError
from airflow_tf.core.units import format_bytes
from airflow_tf.storage.base import CHUNK_BYTES
from airflow_tf.storage.cache_entries import STAMP_NS, cache_entries, checksum, removable, stamp

_POLL_SECONDS = 0.1
_MOST_ROUNDS = 100
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
NO_LINK = {errno.EXDEV, errno.EMLINK, errno.EPERM}
_JOURNAL = ".done"

Fill = Callable[[IO[bytes], Path], int]
"""Writes a file and returns its CRC32C; may keep in a journal at the path what is written already."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole file of the cache and its CRC32C."""

    path: str
    crc32c: int
    was_cached: bool


def boot_id() -> str:
    """Return eight hex digits that are new after each boot of this host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", "")[:8]


def free_bytes(folder: Path) -> int:
    """Return what an ordinary user may still write on the folder's file system."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


class Cache:
    """One user's cache below ``folder``, kept near ``budget_bytes`` by removing what was used longest ago.

    ``tick`` is called whenever something moves: bytes verified here, or bytes written by another process for which
    this one waits.
    """

    def __init__(self, folder: Path, budget_bytes: int, boot: str, tick: Callable[[], None]) -> None:
        self._entries, self._partial = folder / "entries", folder / "partial"
        self._folder, self._budget_bytes, self._boot, self._tick = folder, budget_bytes, boot, tick
        for made in (folder, self._entries, self._partial):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)

    def remove_abandoned(self, wanted: AbstractSet[str]) -> None:
        """Remove what killed writers left (their locks are free), except what is ``wanted``: that is continued."""
        for path in self._partial.iterdir():
            key = path.name.partition(".")[0]
            if key in wanted:
                continue
            with contextlib.suppress(OSError), (self._partial / key).open("rb") as file:  # being written, or gone
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._drop_partial(key)
            if path.suffix and not (self._partial / key).exists():
                path.unlink(missing_ok=True)

    def _drop_partial(self, key: str) -> None:
        (self._partial / f"{key}{_JOURNAL}").unlink(missing_ok=True)
        (self._partial / key).unlink(missing_ok=True)

    def allocated_bytes(self, key: str) -> int:
        """Return the disk that an unfinished copy of ``key`` takes already."""
        try:
            return (self._partial / key).stat().st_blocks * 512
        except FileNotFoundError:
            return 0

    def find(self, key: str) -> Entry | None:
        """Return the entry of ``key``; one of another boot, or written to, only if its checksum holds."""
        return self.find_all({key}).get(key)

    def find_all(self, keys: AbstractSet[str]) -> dict[str, Entry]:
        """Return the entries that are there of ``keys``, as :meth:`find` does, with one look at each folder."""
        found: dict[str, Entry] = {}
        for prefix in {key[:2] for key in keys}:
            folder = f"{self._entries}/{prefix}"
            try:
                names = os.listdir(folder)  # noqa: PTH208 -- names, not a hundred thousand paths
            except FileNotFoundError:
                continue
            for name in names:
                key = name.partition(".")[0]
                if key in keys and (entry := self._usable(folder, name)):
                    found[key] = entry
        return found

    def _usable(self, folder: str, name: str) -> Entry | None:
        path = f"{folder}/{name}"
        key, crc32c, boot = name.split(".")
        with contextlib.suppress(FileNotFoundError):  # removed by another process meanwhile
            if boot != self._boot or os.stat(path).st_mtime_ns != STAMP_NS:  # noqa: PTH116 -- text, as above
                if checksum(Path(path), self._tick) != int(crc32c, 16):
                    Path(path).unlink()
                    return None
                path = str(Path(path).rename(f"{folder}/{key}.{crc32c}.{self._boot}"))
            stamp(path)
            return Entry(path, int(crc32c, 16), was_cached=True)
        return None

    def make_room(self, need_bytes: int, keep: AbstractSet[str]) -> None:
        """Remove unused entries, least recently used first, until ``need_bytes`` more fit the budget and the disk.

        Entries in use and those of the keys ``keep`` stay, even if the budget is exceeded.

        :raises StorageNoSpaceError: if the disk will not hold ``need_bytes``.
        """
        total = sum(entry.size for entry in cache_entries(self._folder))

        def fits() -> bool:
            return total + need_bytes <= self._budget_bytes and free_bytes(self._folder) >= need_bytes

        if fits():
            return
        for entry in removable(cache_entries(self._folder), math.inf):
            if entry.key not in keep:
                entry.path.unlink(missing_ok=True)
                total -= entry.size
                if fits():
                    return
        if free_bytes(self._folder) < need_bytes:
            raise self.no_space(need_bytes)

    def no_space(self, need_bytes: int) -> StorageNoSpaceError:
        """Return the error that names what is needed and what is free."""
        return StorageNoSpaceError(
            f"The disk of {self._folder} is too small",
            f"{format_bytes(need_bytes)} are needed, {format_bytes(free_bytes(self._folder))} are free",
            "Free space, or set [airflow_tf] home to a larger disk.",
        )

    def place(self, key: str, size: int, target: Path, fill: Fill) -> Entry:
        """Make ``target`` a link to the entry of ``key``, which ``fill`` writes (returning its CRC32C) if need be.

        While another process writes the same entry this one waits for it.
        """
        for _ in range(_MOST_ROUNDS):
            entry = self.find(key) or self._write(key, size, fill)
            with contextlib.suppress(FileNotFoundError):  # removed before the link was made: again
                link_or_copy(entry.path, target)
                return entry
        raise StorageError(f"{target} was not staged", "the cache loses the file as often as it is copied")

    def adopt(self, key: str, crc32c: int, path: str) -> None:
        """Make a whole file on the cache's disk the entry of ``key`` too; one that is there meanwhile takes its place.

        :raises OSError: one of ``NO_LINK`` where the file cannot have two names.
        """
        entry = self._entry_path(key, crc32c)
        try:
            _link(path, entry)
        except FileExistsError:
            os.unlink(path)  # noqa: PTH108 -- text: a Path for each of many small files costs as much as its link
            _link(entry, path)

    def _entry_path(self, key: str, crc32c: int) -> str:
        return f"{self._entries}/{key[:2]}/{key}.{crc32c:08x}.{self._boot}"

    def _write(self, key: str, size: int, fill: Fill) -> Entry:
        path, journal = self._partial / key, self._partial / f"{key}{_JOURNAL}"
        with self._locked(path) as file:
            if found := self.find(key):  # its writer finished while this process waited
                self._drop_partial(key)
                return found
            try:
                if size:
                    os.posix_fallocate(file.fileno(), 0, size)
                crc32c = fill(file, journal)
                os.fchmod(file.fileno(), 0o444)
                stamp(file.fileno())
                entry = Path(self._entry_path(key, crc32c))
                entry.parent.mkdir(mode=0o700, exist_ok=True)
                journal.unlink(missing_ok=True)  # first: it must never outlive the file of which it speaks
                path.rename(entry)
            except BaseException as error:
                if not (_may_continue(error) and journal.exists()):
                    self._drop_partial(key)
                if isinstance(error, OSError) and error.errno in NO_SPACE:
                    raise self.no_space(size) from error
                raise
        return Entry(str(entry), crc32c, was_cached=False)

    @contextlib.contextmanager
    def _locked(self, path: Path) -> Iterator[IO[bytes]]:
        """Open the partial file under its lock, once no other process writes it."""
        seen = 0
        while True:
            with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if (now := os.fstat(file.fileno()).st_mtime_ns) != seen:
                        seen = now
                        self._tick()
                    time.sleep(_POLL_SECONDS)
                    continue
                if _is_same(path, file):  # else it was renamed or removed before the lock was taken
                    yield file
                    return


def _may_continue(error: BaseException) -> bool:
    """Tell whether what was copied before ``error`` is still good: its server was away, or another file failed."""
    return isinstance(error, CancelledError | StorageUnavailableError)


def _is_same(path: Path, file: IO[bytes]) -> bool:
    try:
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Make ``target`` a hard link to ``source``; a read-only copy where the file systems do not allow a link."""
    try:
        _link(source, target)
    except OSError as error:
        if error.errno not in NO_LINK:
            raise
        try:
            _copy(Path(source), Path(target))
        except OSError as failure:  # of a write it does not say where
            Path(target).unlink(missing_ok=True)
            raise OSError(failure.errno, failure.strerror, str(target)) from failure


def _link(source: Path | str, target: Path | str) -> None:
    """Make a hard link, and the folder for it if need be; another thread may do so at the same time."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        Path(target).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.link(source, target)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as original, target.open("wb") as copy:
        while chunk := original.read(CHUNK_BYTES):
            copy.write(chunk)
        copy.flush()
        os.fchmod(copy.fileno(), 0o444)
        stamp(copy.fileno())
