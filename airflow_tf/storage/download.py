"""The copy of one source file by ranges: in any order, by several threads, continued after a kill.

A finished range is a line of the file's journal, with its CRC32C. The journal's head names the boot of the host,
because nothing is flushed to disk (after a power failure the bytes may be missing though the line is there), and the
inode, because it must not speak of a file that somebody has removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import google_crc32c

from airflow_tf.core.crc32c import combine
from airflow_tf.core.errors import SourceChangedError
from airflow_tf.storage.base import FileInfo, FileSystem, Uri
from airflow_tf.storage.checksum import agrees
from airflow_tf.storage.crew import Crew
from airflow_tf.storage.progress import Patience, Reporter

RANGE_BYTES = 32 << 20
"""Size of the ranges in which a large file is copied; a file up to this size is one."""


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a file."""

    offset: int
    length: int


def ranges(size: int, range_bytes: int = RANGE_BYTES) -> list[Range]:
    """Cut a file of ``size`` bytes into ranges that cover it without overlap; an empty file is one, to be opened."""
    return [Range(offset, min(range_bytes, size - offset)) for offset in range(0, max(1, size), range_bytes)]


def read_journal(text: str, head: str) -> dict[int, int]:
    """Return the CRC32C of each finished range by its offset; nothing under another head, and no cut line."""
    found, *lines = text.split("\n")[:-1] or [""]
    if found != head:
        return {}
    return {int(offset): int(crc32c, 16) for offset, _, crc32c in (line.partition(" ") for line in lines)}


@dataclass(frozen=True, slots=True)
class Source:
    """Where files are read from, and who is told about it."""

    uri: Uri
    files: FileSystem
    reporter: Reporter
    patience: Patience
    crew: Crew
    boot: str


class Download:
    """Writes one source file and returns its CRC32C; goes on where it was when a stream breaks."""

    def __init__(self, source: Source, info: FileInfo) -> None:
        self._source, self._info = source, info
        self._done: dict[int, int] = {}

    def __call__(self, file: IO[bytes], journal: Path) -> int:
        """Copy all bytes; compare length, time and id with what was listed, and the checksum where the source has one.

        :raises SourceChangedError: if they differ.
        """
        wanted = ranges(self._info.size)
        if len(wanted) == 1:
            self._done[0] = self._copy(file, wanted[0])
        else:
            self._copy_ranges(file, wanted, journal)
        crc32c = 0
        for part in wanted:
            crc32c = combine(crc32c, self._done[part.offset], part.length)
        self._check(file, crc32c)
        return crc32c

    def _copy_ranges(self, file: IO[bytes], wanted: list[Range], journal: Path) -> None:
        with journal.open("a+", encoding="ascii") as lines:
            head = f"{self._source.boot} {os.fstat(file.fileno()).st_ino} {self._info.size} {RANGE_BYTES}"
            lines.seek(0)
            self._done = read_journal(lines.read(), head)
            if not self._done:
                lines.truncate(0)
                lines.write(f"{head}\n")
                lines.flush()
            left = [part for part in wanted if part.offset not in self._done]
            kept = sum(part.length for part in wanted) - sum(part.length for part in left)
            if kept:
                self._source.reporter.tick(kept)
                self._source.reporter.note(f"{self._name}: going on after {kept} bytes that an earlier try has copied")

            def run(part: Range) -> None:
                crc32c = self._copy(file, part)
                self._done[part.offset] = crc32c
                os.write(lines.fileno(), f"{part.offset} {crc32c:08x}\n".encode("ascii"))  # one call: whole lines

            self._source.crew.share([lambda part=part: run(part) for part in left])  # type: ignore[misc]

    @property
    def _name(self) -> str:
        return self._source.uri.at(self._info.path)

    def _copy(self, file: IO[bytes], part: Range) -> int:
        """Copy one range and return its CRC32C."""
        position, crc32c = part.offset, 0
        end = part.offset + part.length

        def stream() -> None:
            nonlocal position, crc32c
            for chunk in self._chunks(position, end - position):
                os.pwrite(file.fileno(), chunk, position)
                crc32c = google_crc32c.extend(crc32c, chunk)
                position += len(chunk)
                self._source.reporter.tick(len(chunk))

        self._source.patience(stream, progress=lambda: position)
        if position != end:
            raise self._changed(f"listed with {self._info.size} bytes, it ends after {position}")
        return crc32c

    def _chunks(self, offset: int, length: int) -> Iterator[bytes]:
        return self._source.files.read(self._info.path, offset, length)

    def _check(self, file: IO[bytes], crc32c: int) -> None:
        files, patience = self._source.files, self._source.patience
        now = patience(lambda: files.stat(self._info.path))
        if now.version != self._info.version:
            raise self._changed(f"listed with {self._info.size} bytes, now it has {now.size}, or another time or id")
        known = patience(lambda: files.checksum(self._info.path))
        if known and not agrees(known, file.fileno(), self._info.size, crc32c, self._source.reporter.tick):
            raise SourceChangedError(
                f"{self._name} was not copied as it is", f"its checksum is {known.value.hex()}, the copy has another"
            )

    def _changed(self, why: str) -> SourceChangedError:
        return SourceChangedError(
            f"{self._name} changed while it was read", why, "Stage it when its writer has finished."
        )
