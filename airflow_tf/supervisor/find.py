"""Find the supervisor of a gang by the lock that it holds, and end one that no longer listens."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from airflow_tf.supervisor.protocol import LOCK_NAME

_PROC = Path("/proc")
_MODULE = b"airflow_tf.supervisor"


def find_supervisor(folder: Path) -> int | None:
    """Return the pid of the supervisor of the gang in ``folder``; None if none of this user runs.

    It is the process that runs the supervisor's module and has the gang's lock file open: the kernel's list of locks
    names who took the lock, which is the task that started it.
    """
    try:
        lock = (folder / LOCK_NAME).stat()
    except FileNotFoundError:
        return None
    for process in _PROC.iterdir():
        if process.name.isdigit() and _runs_supervisor(process) and _has_open(process, (lock.st_dev, lock.st_ino)):
            return int(process.name)
    return None


def kill_supervisor(folder: Path) -> int | None:
    """Send SIGKILL to the gang's supervisor, which also ends a stopped one, and return its pid; None if there is none.

    Its zygote and replicas die with it; what they left is for the sweep by whoever takes its devices back.
    """
    pid = find_supervisor(folder)
    if pid is None:
        return None
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        handle = os.pidfd_open(pid)
        try:
            if find_supervisor(folder) == pid:  # the pid was not given to another process meanwhile
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
    return pid


def _runs_supervisor(process: Path) -> bool:
    try:
        return _MODULE in (process / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def _has_open(process: Path, file: tuple[int, int]) -> bool:
    try:
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found = descriptor.stat()
                if (found.st_dev, found.st_ino) == file:
                    return True
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone, or another user's
        return False
    return False
