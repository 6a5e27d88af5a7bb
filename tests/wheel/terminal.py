"""A shell on a pseudo-terminal, into which a test types as a user does."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from fcntl import ioctl
from pathlib import Path

import psutil

_PROMPT = re.compile(rb"@(\d+)@> ")
_CONTROL_SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ROWS_AND_COLUMNS = (50, 120)
COMMAND_DEADLINE_SECONDS = 240.0


class Terminal:
    """bash with nothing in its environment but what it is given."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *_ROWS_AND_COLUMNS, 0, 0))
        self._shell = subprocess.Popen(
            ["setsid", "--ctty", "bash", "--noprofile", "--norc", "--noediting", "-i"],
            env=dict(environment) | {"PS1": "@$?@> ", "TERM": "xterm"},
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self._unread = b""
        self.read_until(_PROMPT, "the first prompt")

    def type(self, line: str) -> tuple[int, str]:
        """Type a command and return its exit code and what it showed, without colours."""
        self.send(line)
        shown, prompt = self.read_until(_PROMPT, line)
        return int(prompt[1]), shown.partition("\n")[2]  # the first line is what was typed

    def send(self, line: str) -> None:
        os.write(self._master, f"{line}\n".encode())

    def read_until(self, pattern: re.Pattern[bytes], what: str) -> tuple[str, re.Match[bytes]]:
        """Return what is shown before ``pattern``, and the match; fail at the deadline."""
        deadline = time.monotonic() + COMMAND_DEADLINE_SECONDS
        while not (found := pattern.search(self._unread)):
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._master], [], [], max(left, 0))
            assert ready, f"{what}: not within {COMMAND_DEADLINE_SECONDS} s; shown so far:\n{self._text(self._unread)}"
            self._unread += os.read(self._master, 65536)
        shown, self._unread = self._unread[: found.start()], self._unread[found.end() :]
        return self._text(shown), found

    def drain(self) -> None:
        """Drop what was shown meanwhile: a terminal that nobody reads stops who writes to it."""
        while select.select([self._master], [], [], 0)[0]:
            os.read(self._master, 65536)

    def close(self) -> None:
        """Close the window: SIGKILL to all that was started in it and did not detach itself."""
        family = psutil.Process(self._shell.pid).children(recursive=True)
        self._shell.kill()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended with its parent
                process.send_signal(signal.SIGKILL)
        self._shell.wait()
        os.close(self._master)

    @staticmethod
    def _text(shown: bytes) -> str:
        return _CONTROL_SEQUENCES.sub("", shown.decode(errors="replace")).replace("\r\n", "\n")
