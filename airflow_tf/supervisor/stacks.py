"""What processes do that do not get on: their state, and the stacks of all their threads, in their own output."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_tf.core.launch import STACK_SIGNAL
from airflow_tf.supervisor.output import say

DEADLINE_SECONDS = 5.0
"""Time that the processes have to write their stacks, and again for ``py-spy``."""

_POLL_SECONDS = 0.05
_QUIET_POLLS = 6
_STACK = b"most recent call first"
_FROZEN = "TtD"


@dataclass(frozen=True, slots=True)
class Target:
    """One replica's main process; ``send`` sends it a signal."""

    replica: int
    pid: int
    send: Callable[[int], None]
    output: Path


def state_of(pid: int) -> str:
    """Return a process's state and what it waits for in the kernel, in words."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        state = next(line.partition(":")[2].strip() for line in lines if line.startswith("State:"))
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
    with contextlib.suppress(OSError):  # not every kernel tells
        channel = Path(f"/proc/{pid}/wchan").read_text()
        if channel not in {"", "0"}:
            state += f", waiting in {channel}"
    return f"in state {state}"


def is_frozen(pid: int) -> bool:
    """Tell whether a process cannot run its own code: stopped, traced, or in the kernel for good."""
    return state_of(pid).removeprefix("in state ")[:1] in _FROZEN


def show_stacks(targets: Sequence[Target], reason: str, deadline_seconds: float = DEADLINE_SECONDS) -> None:
    """Let every process write its stacks into its output, and wait until they are written.

    What cannot write them is told by ``py-spy``, where that is installed.
    """
    waiting: dict[Target, int] = {}
    for target in targets:
        say(target.output, f"{reason}; replica {target.replica} (pid {target.pid}) is {state_of(target.pid)}")
        if is_frozen(target.pid):
            say(target.output, "it cannot write its stacks")
        else:
            waiting[target] = target.output.stat().st_size
            target.send(STACK_SIGNAL)
    _wait_written(waiting, deadline_seconds)
    _spy(targets, deadline_seconds)


def _wait_written(begins: dict[Target, int], deadline_seconds: float) -> None:
    """Wait until each output has got stacks after its position, and grows no more; or until the deadline."""
    deadline = time.monotonic() + deadline_seconds
    sizes = dict(begins)
    quiet = dict.fromkeys(begins, 0)
    while time.monotonic() < deadline and any(polls < _QUIET_POLLS for polls in quiet.values()):
        time.sleep(_POLL_SECONDS)
        for target, begin in begins.items():
            size = target.output.stat().st_size
            done = size == sizes[target] and _has_stack(target.output, begin)
            quiet[target] = quiet[target] + 1 if done else 0
            sizes[target] = size


def _has_stack(output: Path, begin: int) -> bool:
    with output.open("rb") as file:
        file.seek(begin)
        return _STACK in file.read()


def _spy(targets: Sequence[Target], deadline_seconds: float) -> None:
    """Append what ``py-spy`` sees; it reads the memory of processes that cannot answer."""
    program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if program is None:
        return
    for target in targets:
        command = [program, "dump", "--nonblocking", "--pid", str(target.pid)]
        with target.output.open("ab") as output, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=deadline_seconds, check=False
            )
