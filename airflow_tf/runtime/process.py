"""Linux process primitives that a training process needs: die with the parent, be found by a fencing token."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from airflow_tf.core.identity import FENCE_VARIABLE, TOKEN_LENGTH

PARENT_VARIABLE = "AIRFLOW_TF_PARENT"
"""Pid of the process that started this one; removed from the environment once read."""

_PR_SET_PDEATHSIG = 1
_ENV_START = 50 - 3  # proc(5): env_start is field 50 of stat; the fields after the name begin with field 3
_PLACEHOLDER = "-" * TOKEN_LENGTH


def placeholder_environment() -> dict[str, str]:
    """Return the variable that reserves room for a token in a zygote's environment block."""
    return {FENCE_VARIABLE: _PLACEHOLDER}


def die_with_parent(expected_parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends; end at once if that has already happened.

    The signal is tied to the parent's *thread* that created this process, and is cleared on fork.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != expected_parent:
        os._exit(1)


def stamp_environment(token: str) -> None:
    """Overwrite the placeholder in this process's initial environment block, so that ``/proc/<pid>/environ`` shows it.

    ``os.environ`` changes memory that ``/proc`` does not show; a forked process shows what its parent was started
    with. A sweep that looks for the token would otherwise miss a forked replica and everything it forks.
    """
    stat = Path("/proc/self/stat").read_text()
    fields = stat[stat.rindex(")") + 2 :].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_START + 1])
    block = ctypes.string_at(start, end - start)
    marker = f"{FENCE_VARIABLE}={_PLACEHOLDER}".encode()
    position = block.find(marker)
    if position < 0:
        raise RuntimeError(f"the environment of process {os.getpid()} has no placeholder for {FENCE_VARIABLE}")
    text = f"{FENCE_VARIABLE}={token}".encode()
    if len(text) != len(marker):
        raise ValueError(f"a fencing token has {TOKEN_LENGTH} characters, got {len(token)}")
    ctypes.memmove(start + position, text, len(text))
