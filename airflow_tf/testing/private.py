"""What the servers for tests share: free ports, private folders that a killed owner leaves to the next, a command."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import IO, TypeVar

S = TypeVar("S")
# Below Linux's ephemeral range: no outgoing connection takes a port while its owner is down.
_PORTS = range(20000, 32000)

# Runs before the server in the new process: the kernel kills it when the thread that started it ends (PR_SET_PDEATHSIG
# survives exec); the comparison catches a parent that died before the call.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def start_with_owner(
    command: list[str], log: IO[bytes], environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a server that dies with the calling thread; ``command`` begins with a path."""
    wrapper = [sys.executable, "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
    return subprocess.Popen(
        [*wrapper, *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def free_ports(names: list[str]) -> dict[str, int]:
    """Return a loopback port for each name that nobody listens on."""
    ports: dict[str, int] = {}
    candidates = random.SystemRandom().sample(_PORTS, len(_PORTS))
    for name in names:
        while True:
            port = candidates.pop()
            with socket.socket() as probe, contextlib.suppress(OSError):  # taken: try the next one
                probe.bind(("127.0.0.1", port))
                ports[name] = port
                break
    return ports


def make_folder(prefix: str) -> tuple[Path, IO[str]]:
    """Make a temporary folder and return it with its lock, which is held as long as its owner lives."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    lock = (folder / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def remove_abandoned_folders(prefix: str) -> None:
    """Remove folders whose owner is dead: their lock is free."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError), (folder / "lock").open() as lock:  # in use, not ours, or already gone
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def run_beside(server: AbstractContextManager[S], command: list[str], variables: Callable[[S], dict[str, str]]) -> int:
    """Run a command with ``variables`` of the running server in its environment; return its exit code."""

    def forward(number: int, _frame: FrameType | None) -> None:
        if child is not None:
            child.send_signal(number)
        elif is_starting:  # an exit in here would leave a command that nobody knows
            asked.append(number)
        else:
            sys.exit(128 + number)

    child: subprocess.Popen[bytes] | None = None
    is_starting, asked = False, list[int]()
    signal.signal(signal.SIGTERM, forward)
    with server as started:
        environment = os.environ | variables(started)
        is_starting = True
        child = subprocess.Popen(command, env=environment)
        for number in asked:
            child.send_signal(number)
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # the terminal sent ^C to the command as well: let it end
                code = child.wait()
                return code if code >= 0 else 128 - code
