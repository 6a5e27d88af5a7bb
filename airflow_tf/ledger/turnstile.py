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
from dataclasses import dataclass
from pathlib import Path

_STRUCT_FLOCK = "hhqqi4x"  # type, whence, start, length, pid: must be 0
_NUMBER = struct.Struct("<q")
_STATE = struct.Struct("<qqqq")
_SHIFT = struct.Struct("<qqq")
_SHIFT_OFFSET, _LEFT_OFFSET = 8, 24

_SHIFT_SECONDS = 0.02
"""How long one that comes again and again goes before the others: to change processes costs more than a transaction."""

_ALL_SHIFTS_SECONDS = 0.5
"""How long the shifts of all who wait may take in sum."""

_AWAY_SECONDS = 0.001
"""How long the others wait for one that has left within its shift."""

_NEXT_PAUSE_SECONDS = 0.0003
_EACH_PAUSE_SECONDS = 0.002
"""Pause for each one between the one that was let through last and the one that asks: about what a turn takes."""

_LONGEST_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class _State:
    """What the file says: the last ticket given out, the last one let through, its shift's end, when it last left.

    Times are of the monotonic clock, in nanoseconds.
    """

    last: int
    served: int
    until: int
    left: int

    @property
    def is_coming_back(self) -> bool:
        """Tell whether the last one that was let through is just away; a time of another boot says nothing."""
        now = time.monotonic_ns()
        return self.left <= now < min(self.until, self.left + _nanoseconds(_AWAY_SECONDS))


class Turnstile:
    """Tickets are byte numbers of the file; each waiter's byte is locked by it, and by the kernel freed when it dies.

    A ticket lets its owner through for a *shift* of some milliseconds: again, before those who wait, unless it stays
    away. Everybody's shift comes within a second, however many there are.

    It is for fairness only: what must not happen twice at once needs a lock of its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ticket = 0

    @contextlib.contextmanager
    def turn(self, seconds: float) -> Iterator[bool]:
        """Wait for one's turn and keep it within the context.

        False if it has not come in time, or if the file cannot be written (a full disk): then the database says so.
        """
        with contextlib.ExitStack() as stack:
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                stack.callback(_unlock, descriptor)
                is_turn = self._come_in(descriptor, time.monotonic() + seconds)
                if is_turn:
                    stack.callback(_leave, descriptor)
            except OSError:
                is_turn = False
            yield is_turn

    def _come_in(self, descriptor: int, deadline: float) -> bool:
        if _come_back(descriptor, self._ticket):
            return True
        self._ticket = _take_ticket(descriptor)
        return _wait(descriptor, self._ticket, deadline)


def _take_ticket(descriptor: int) -> int:
    ticket = 0
    while True:
        ticket = max(ticket, _read(descriptor).last) + 1
        if not _try_lock(descriptor, ticket, 1):
            continue  # somebody takes this one just now
        if _read(descriptor).last < ticket:
            os.pwrite(descriptor, _NUMBER.pack(ticket), 0)
            return ticket
        _control(descriptor, fcntl.F_UNLCK, ticket, 1)


def _wait(descriptor: int, ticket: int, deadline: float) -> bool:
    while (state := _read(descriptor)).is_coming_back or not _try_lock(descriptor, 0, ticket):
        if time.monotonic() > deadline:
            return False
        time.sleep(_pause_seconds(state, ticket))
    shift_seconds = min(_SHIFT_SECONDS, _ALL_SHIFTS_SECONDS / max(1, state.last - ticket))
    until = time.monotonic_ns() + _nanoseconds(shift_seconds)
    os.pwrite(descriptor, _SHIFT.pack(ticket, until, 0), _SHIFT_OFFSET)
    return True


def _pause_seconds(state: _State, ticket: int) -> float:
    ahead = ticket - state.served - 1
    if ahead > 0:
        return min(ahead * _EACH_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
    return _AWAY_SECONDS if time.monotonic_ns() < state.until else _NEXT_PAUSE_SECONDS


def _come_back(descriptor: int, ticket: int) -> bool:
    """Go on with a shift that has not ended, unless somebody else was let through meanwhile."""
    state = _read(descriptor)
    if state.served != ticket or not state.left <= time.monotonic_ns() < state.until:
        return False
    if not _try_lock(descriptor, 0, ticket + 1):
        return False
    if _read(descriptor).served == ticket:
        return True
    _control(descriptor, fcntl.F_UNLCK, 0, 0)  # who waits must not wait for one that has to queue behind it
    return False


def _leave(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # a full disk: then nobody waits for this one to come back
        os.pwrite(descriptor, _NUMBER.pack(time.monotonic_ns()), _LEFT_OFFSET)


def _unlock(descriptor: int) -> None:
    """Unlock, not by closing alone: a process that another thread forked meanwhile has the file open too."""
    _control(descriptor, fcntl.F_UNLCK, 0, 0)
    os.close(descriptor)


def _read(descriptor: int) -> _State:
    return _State(*_STATE.unpack(os.pread(descriptor, _STATE.size, 0).ljust(_STATE.size, b"\0")))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _try_lock(descriptor: int, start: int, length: int) -> bool:
    try:
        _control(descriptor, fcntl.F_WRLCK, start, length)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as the system likes
        return False
    return True


def _control(descriptor: int, kind: int, start: int, length: int) -> None:
    """Lock or unlock bytes for the open file, which is neither its process nor its thread."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_STRUCT_FLOCK, kind, os.SEEK_SET, start, length, 0))
