"""Many small files: by the folder, read and written whole, straight into the staged folder, then linked into the cache.

A small file is not worth a lock, a journal or space taken beforehand: after a kill it is read again, and of two
processes that copy the same one the second takes the first one's. Whether sources have changed meanwhile is asked once
for all files of a folder.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from airflow_tf.storage.base import FileInfo
from airflow_tf.storage.cache import NO_LINK, NO_SPACE, Cache
from airflow_tf.storage.cache_entries import stamp
from airflow_tf.storage.checksum import agrees
from airflow_tf.storage.download import Source

SMALL_BYTES = 64 << 10
"""Largest small file: what HDFS sends in one packet."""

_MOST_FILES = 128
_LISTING_PAYS = 16  # entries of a listing cost together what asking for one file does


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to stage: its name below the staged folder, what was listed of it, and its key in the cache."""

    name: str
    info: FileInfo
    key: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Files of one source folder, and how many of the source that folder has in all, cached and large ones too."""

    folder: str
    files: Sequence[Wanted]
    siblings: int


def batches(small: Iterable[Wanted], share: int, siblings: Mapping[str, int]) -> Iterator[Batch]:
    """Cut files into batches of one folder each, of ``1 / share`` of all files at most.

    :param siblings: how many files of the source each folder has.
    """
    folders: dict[str, list[Wanted]] = {}
    for file in small:
        folders.setdefault(posixpath.dirname(file.info.path), []).append(file)
    step = min(_MOST_FILES, 1 + sum(map(len, folders.values())) // share)
    for folder, files in folders.items():
        for start in range(0, len(files), step):
            yield Batch(folder, files[start : start + step], siblings[folder])


class SmallFiles:
    """Copies batches of small files into one staged folder; safe to call from several threads.

    :param is_tree: the source is whole folders, so that listing one again yields little beside what is wanted.
    """

    def __init__(self, source: Source, cache: Cache, folder: str, *, is_tree: bool) -> None:
        self._source, self._cache, self._folder, self._is_tree = source, cache, folder, is_tree
        self._can_link = True

    def __call__(self, batch: Batch) -> dict[str, int | None]:
        """Return the CRC32C of each file that was placed, by its name; None for one that has changed meanwhile.

        What is missing is to be copied as large files are: the disk does not let a file have two names.
        """
        if not self._can_link:
            return {}
        os.makedirs(self._path(posixpath.dirname(batch.files[0].name)), mode=0o700, exist_ok=True)  # noqa: PTH103 -- text
        copied: dict[str, int | None] = {}

        def copy() -> None:
            for file in batch.files[len(copied) :]:
                copied[file.name] = self._copy(file)

        self._source.patience(copy, progress=lambda: len(copied))
        versions = self._versions(batch)
        placed: dict[str, int | None] = {}
        for file in batch.files:
            crc32c = copied[file.name]
            if crc32c is None or versions.get(file.info.path) != file.info.version:
                placed[file.name] = None
            elif self._adopt(file, crc32c):
                placed[file.name] = crc32c
                continue
            Path(self._path(file.name)).unlink(missing_ok=True)
        return placed

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _copy(self, file: Wanted) -> int | None:
        """Write one file and return its CRC32C; None if it is not what was listed."""
        path, files = self._path(file.name), self._source.files
        data = b"".join(files.read(file.info.path, 0, file.info.size))
        crc32c: int = google_crc32c.value(data)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
            known = files.checksum(file.info.path)
            whole = known is None or agrees(known, descriptor, len(data), crc32c, self._source.reporter.tick)
            os.fchmod(descriptor, 0o444)  # last: after a failure before it the file is opened again
            stamp(descriptor)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise self._cache.no_space(len(data)) from error
            raise OSError(error.errno, error.strerror, path) from error  # a write does not say where
        finally:
            os.close(descriptor)
        self._source.reporter.tick(len(data))
        return crc32c if whole and len(data) == file.info.size else None

    def _versions(self, batch: Batch) -> dict[str, tuple[int, int, str]]:
        """Return what the files of a batch are now."""
        files, patience = self._source.files, self._source.patience
        paths = {file.info.path for file in batch.files}
        if self._is_tree and batch.siblings <= len(paths) * _LISTING_PAYS:
            found = patience(lambda: [info for info in files.list(batch.folder) if info.path in paths])
        else:
            found = [patience(lambda path=path: files.stat(path)) for path in paths]  # type: ignore[misc]
        return {info.path: info.version for info in found}

    def _adopt(self, file: Wanted, crc32c: int) -> bool:
        try:
            self._cache.adopt(file.key, crc32c, self._path(file.name))
        except FileNotFoundError:  # another process has copied the same, and it was removed since
            return False
        except OSError as error:
            if error.errno not in NO_LINK:
                raise
            self._can_link = False
            return False
        return True
