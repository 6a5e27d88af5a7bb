"""A queue of processes before one file: who came first goes first, and who is killed leaves the queue.

SQLite has no such queue. Its writers ask again and again, and some of many lose for seconds. See docs/adr/0012.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

_STRUCT_FLOCK = "hhqqi4x"  # type, whence, start, length, pid: must be 0
_NUMBER = struct.Struct("<q")
_NUMBERS = struct.Struct("<qq")  # the last ticket given out, the last one let through
_NEXT_PAUSE_SECONDS = 0.0001
_EACH_PAUSE_SECONDS = 0.001
"""Pause for each one between the one that was let through last and the one that asks: about what a turn takes."""

_LONGEST_PAUSE_SECONDS = 0.02


class Turnstile:
    """Tickets are byte numbers of the file; each waiter's byte is locked by it, and by the kernel freed when it dies.

    It is for fairness only: what must not happen twice at once needs a lock of its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def turn(self, seconds: float) -> Iterator[bool]:
        """Wait for one's turn and keep it within the context.

        False if it has not come in time, or if the file cannot be written (a full disk): then the database says so.
        """
        with contextlib.ExitStack() as stack:
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                stack.callback(_leave, descriptor)
                is_turn = _wait(descriptor, _take_ticket(descriptor), time.monotonic() + seconds)
            except OSError:
                is_turn = False
            yield is_turn


def _leave(descriptor: int) -> None:
    """Unlock, not by closing alone: a process that another thread forked meanwhile has the file open too."""
    _control(descriptor, fcntl.F_UNLCK, 0, 0)
    os.close(descriptor)


def _take_ticket(descriptor: int) -> int:
    ticket = 0
    while True:
        ticket = max(ticket, _read(descriptor)[0]) + 1
        if not _try_lock(descriptor, ticket, 1):
            continue  # somebody takes this one just now
        if _read(descriptor)[0] < ticket:
            os.pwrite(descriptor, _NUMBER.pack(ticket), 0)
            return ticket
        _control(descriptor, fcntl.F_UNLCK, ticket, 1)


def _wait(descriptor: int, ticket: int, deadline: float) -> bool:
    while not _try_lock(descriptor, 0, ticket):
        if time.monotonic() > deadline:
            return False
        ahead = max(0, ticket - _read(descriptor)[1] - 1)
        time.sleep(min(_NEXT_PAUSE_SECONDS + ahead * _EACH_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS))
    os.pwrite(descriptor, _NUMBER.pack(ticket), _NUMBER.size)
    return True


def _read(descriptor: int) -> tuple[int, int]:
    last, served = _NUMBERS.unpack(os.pread(descriptor, _NUMBERS.size, 0).ljust(_NUMBERS.size, b"\0"))
    return last, served


def _try_lock(descriptor: int, start: int, length: int) -> bool:
    try:
        _control(descriptor, fcntl.F_WRLCK, start, length)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as the system likes
        return False
    return True


def _control(descriptor: int, kind: int, start: int, length: int) -> None:
    """Lock or unlock bytes for the open file, which is neither its process nor its thread."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_STRUCT_FLOCK, kind, os.SEEK_SET, start, length, 0))
