"""Find and end the process tree of one attempt, whoever its parents are by now.

A tree is every process of this user that carries the attempt's fencing token in its environment, that was recorded
(pid and start time), or that lives in the session of a recorded session leader. Parent links are not asked: a daemon
that forked twice has none.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_tf.core.identity import FENCE_VARIABLE

_PROC = Path("/proc")
_SCAN_PAUSE_SECONDS = 0.02
_EXIT_WAIT_SECONDS = 0.25
_CATCH_UP_ROUNDS = 100

# Positions in /proc/<pid>/stat after the command's closing bracket.
_STATE, _SESSION, _THREADS, _START = 0, 3, 17, 19


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """What names one process for good within a boot: ``start_ticks`` is field 22 of ``/proc/<pid>/stat``."""

    pid: int
    start_ticks: int
    session: int

    @property
    def leads_session(self) -> bool:
        """Tell whether the process made the session it lives in."""
        return self.pid == self.session


def mark_of(pid: int) -> ProcessMark:
    """Return the mark of a living process.

    :raises ProcessLookupError: if there is none of that pid, or only a zombie.
    """
    found = _look(pid)
    if found is None:
        raise ProcessLookupError(f"no living process {pid}")
    return found


def find_tree(token: str, marks: Sequence[ProcessMark] = ()) -> list[int]:
    """Return the pids of the living processes of an attempt's tree, never the caller's own.

    A session counts only for a mark that leads it: the session of any other marked process belongs to somebody else
    (the zygote, the supervisor). ``marks`` must be of this boot.
    """
    return sorted({pid for pid in _pids() if _is_of_tree(pid, token, marks)})


def kill_tree(token: str, marks: Sequence[ProcessMark] = (), *, deadline_seconds: float = 10.0) -> list[int]:
    """Send SIGKILL until two scans in a row find no process of the tree; return those left at the deadline.

    Two scans, since one is not atomic: a process can fork behind it, or hide in the instant of an exec, in which its
    environment reads empty.
    """
    deadline = time.monotonic() + deadline_seconds
    empty_scans = 0
    while True:
        left = find_tree(token, marks)
        empty_scans = 0 if left else empty_scans + 1
        remaining = deadline - time.monotonic()
        if empty_scans > 1 or remaining <= 0:
            return left
        if left:
            _kill_and_wait(left, token, marks, min(remaining, _EXIT_WAIT_SECONDS))
        else:
            time.sleep(min(remaining, _SCAN_PAUSE_SECONDS))


def _kill_and_wait(pids: Sequence[int], token: str, marks: Sequence[ProcessMark], timeout_seconds: float) -> None:
    """Kill ``pids`` through pidfds and wait until each has ended or the time is over."""
    with contextlib.ExitStack() as stack:
        poll = select.poll()
        waiting: set[int] = set()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # ended meanwhile, or not ours to end
                handle = os.pidfd_open(pid)
                stack.callback(os.close, handle)
                # The pid may have been given to another process between the scan and pidfd_open.
                if not _is_of_tree(pid, token, marks):
                    continue
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                poll.register(handle, select.POLLIN)
                waiting.add(handle)
        deadline = time.monotonic() + timeout_seconds
        while waiting and (remaining := deadline - time.monotonic()) > 0:
            for handle, _ in poll.poll(remaining * 1000):
                poll.unregister(handle)
                waiting.discard(handle)


def _pids() -> Iterator[int]:
    """Yield every pid, then those given out meanwhile, until none is new.

    A listing takes milliseconds, in which a tree can move on by forking and ending. The pids given out since are few
    and looked at within microseconds. They may be thread ids.
    """
    last = _last_pid()
    yield from _listed_pids()
    for _ in range(_CATCH_UP_ROUNDS):
        newest = _last_pid()
        if newest == last:
            return
        yield from range(last + 1, newest + 1) if newest > last else _listed_pids()  # smaller: the numbers wrapped
        last = newest


def _listed_pids() -> list[int]:
    return [int(folder.name) for folder in _PROC.iterdir() if folder.name.isdigit()]


def _last_pid() -> int:
    """Return the pid given out last in this pid namespace."""
    return int((_PROC / "loadavg").read_text().split()[-1])


def _is_of_tree(pid: int, token: str, marks: Sequence[ProcessMark]) -> bool:
    if pid == os.getpid() or (process := _look(pid)) is None:
        return False
    if any((pid, process.start_ticks) == (mark.pid, mark.start_ticks) for mark in marks):
        return _is_own_process(pid)
    if fence := _fence_of(pid):  # of another attempt: not ours, even if a reused session id says otherwise
        return fence == token and _is_own_process(pid)
    return any(_in_session_of(process, mark) for mark in marks) and _is_own_process(pid)


def _in_session_of(process: ProcessMark, mark: ProcessMark) -> bool:
    """Tell whether ``process`` lives in the session that ``mark`` leads.

    A session id is not given out again while a member lives. So the session is the marked one if its leader is the
    marked process, or is gone and the member started later. The caller's own session is never one: the caller is
    outside every tree, so that id was reused.
    """
    if not mark.leads_session or process.session != mark.session or mark.session == os.getsid(0):
        return False
    leader = _look(mark.session)
    if leader is not None:
        return leader.start_ticks == mark.start_ticks
    return process.start_ticks >= mark.start_ticks


def _look(pid: int) -> ProcessMark | None:
    """Read a process's mark; None if it is gone or a zombie without living threads."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # A process whose main thread ended looks like a zombie while its other threads go on.
    if not fields or (fields[_STATE] in {b"Z", b"X"} and int(fields[_THREADS]) <= 1):
        return None
    return ProcessMark(pid, int(fields[_START]), int(fields[_SESSION]))


def _is_own_process(pid: int) -> bool:
    """Tell whether ``pid`` is a process, not a thread, of the caller's real uid.

    The owner of ``/proc/<pid>`` will not do: it is root for a process that is not dumpable.
    """
    try:
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    return fields["Tgid"] == [str(pid)] and fields["Uid"][0] == str(os.getuid())


def _fence_of(pid: int) -> str | None:
    """Return the fencing token in a process's environment, if it can be read and has one."""
    prefix = f"{FENCE_VARIABLE}=".encode()
    try:
        entries = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return next((entry[len(prefix) :].decode(errors="replace") for entry in entries if entry.startswith(prefix)), None)
