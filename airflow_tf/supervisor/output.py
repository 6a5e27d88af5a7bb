"""The output file of an attempt: bounded on disk although its writer is never disturbed.

A replica appends to its own file (no process relays it). What is older than the budget allows is copied into compressed
archives beside it, and its blocks are given back by punching a hole: every byte keeps its offset, so that those who
follow the file by offset go on. A note of where the hole ends is written before the hole is made; a reader that looks
for it *after* it has read never takes zeros for output.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import logging
import os
import shutil
from pathlib import Path

from airflow_tf.core.units import format_bytes

log = logging.getLogger(__name__)

ARCHIVES = "{name}.{number}.gz"
_NOTE = "{name}.hole"
_LINE_BYTES = 64 * 1024
_COPY_BYTES = 1024 * 1024
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_LIVE_PART, _KEPT_PART = 2, 4


def say(output: Path, text: str) -> None:
    """Append a line of ours to a replica's output: whoever shows that shows it."""
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"airflow_tf: {text}\n".encode())
    finally:
        os.close(descriptor)


def hole_end(output: Path) -> int:
    """Return the offset before which the output is no longer in the file; ask it after reading."""
    try:
        return int(json.loads(_note(output).read_text())["end"])
    except FileNotFoundError:
        return 0


def describe_hole(output: Path, begin: int, end: int) -> str:
    """Say what a reader at ``begin`` has missed."""
    return f"airflow_tf: {format_bytes(end - begin)} of output are no longer here; what is kept of it: {output}.*.gz"


class OutputKeeper:
    """Keep the output of one attempt within a budget of disk, archives included.

    Half of the budget is for the file itself, of which at least the last quarter of the budget stays; half for the
    archives, of which the oldest goes first. What a program writes faster than it can be compressed is dropped.
    """

    def __init__(self, output: Path, budget_bytes: int) -> None:
        self._output = output
        self._budget_bytes = budget_bytes
        self._begin = 0
        self._number = 0
        self._is_off = False

    def look(self) -> None:
        """Take away what is too old, if there is more than the budget allows."""
        if self._is_off:
            return
        try:
            size = self._output.stat().st_size
            if size - self._begin > self._budget_bytes // _LIVE_PART and self._can_punch():
                self._rotate(size)
        except FileNotFoundError:  # nothing was written yet
            return
        except OSError as error:
            self._give_up(str(error))

    def _rotate(self, size: int) -> None:
        kept = self._budget_bytes // _KEPT_PART
        with self._output.open("r+b") as file:
            end = _line_end(file.fileno(), self._begin, size - kept)
            begin = self._begin if end - self._begin <= self._budget_bytes else end - kept
            self._archive(file.fileno(), begin, end)
            self._write_note(end)
            _punch(file.fileno(), end)
        self._begin = end
        self._drop_archives()

    def _archive(self, descriptor: int, begin: int, end: int) -> None:
        self._number += 1
        target = self._archive_path(self._number)
        temporary = target.with_name(f"{target.name}.tmp")
        with gzip.open(temporary, "wb", compresslevel=1) as file:
            while begin < end and (data := os.pread(descriptor, min(_COPY_BYTES, end - begin), begin)):
                file.write(data)
                begin += len(data)
        temporary.rename(target)

    def _archive_path(self, number: int) -> Path:
        return self._output.with_name(ARCHIVES.format(name=self._output.name, number=number))

    def _write_note(self, end: int) -> None:
        temporary = _note(self._output).with_suffix(".tmp")
        temporary.write_text(json.dumps({"end": end}))
        temporary.rename(_note(self._output))

    def _drop_archives(self) -> None:
        """Remove the oldest archives beyond their half of the budget."""
        left = self._budget_bytes // _LIVE_PART
        for number in range(self._number, 0, -1):
            path = self._archive_path(number)
            if not path.exists():
                return
            left -= path.stat().st_size
            if left < 0:
                path.unlink()

    def _can_punch(self) -> bool:
        """Try a hole in a file of our own: where that fails, the output must stay as it is."""
        probe = self._output.with_name("hole.probe")
        probe.write_bytes(b"x")
        try:
            with probe.open("r+b") as file:
                _punch(file.fileno(), 1)
        except OSError as error:
            self._give_up(f"this file system cannot free a part of a file ({error.strerror})")
        finally:
            probe.unlink()
        return not self._is_off

    def _give_up(self, why: str) -> None:
        self._is_off = True
        free = format_bytes(shutil.disk_usage(self._output.parent).free)
        log.warning("%s is not bounded any more: %s; %s free", self._output, why, free)


def _note(output: Path) -> Path:
    return output.with_name(_NOTE.format(name=output.name))


def _line_end(descriptor: int, begin: int, limit: int) -> int:
    """Return the end of the last line that ends before ``limit``, or ``limit`` where no line is so short."""
    start = max(begin, limit - _LINE_BYTES)
    found = os.pread(descriptor, limit - start, start).rfind(b"\n")
    return limit if found < 0 else start + found + 1


def _punch(descriptor: int, end: int) -> None:
    """Give the blocks before ``end`` back to the file system; the file keeps its size."""
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_int(descriptor), ctypes.c_int(_PUNCH_HOLE | _KEEP_SIZE))
    if libc.fallocate64(*arguments, ctypes.c_int64(0), ctypes.c_int64(end)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
