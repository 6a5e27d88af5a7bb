"""Clocks of a gang's processes and of the test itself, moved while they run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("wallclock.c")


class Clocks:
    """A Python for supervisors and replicas whose wall clock and boot clock can be moved; this process's move too."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._offsets = folder / "offsets"
        self.move()
        library, self.python = folder / "wallclock.so", folder / "python"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)], check=True)
        preload = f"LD_PRELOAD={library} WALLCLOCK_OFFSETS={self._offsets}"
        self.python.write_text(f'#!/bin/sh\nexec env {preload} {sys.executable} "$@"\n')
        self.python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(self.python))  # with which the supervisor is started
        real_time, real_gettime = time.time, time.clock_gettime
        monkeypatch.setattr(time, "time", lambda: real_time() + self._seconds[0])
        boot = time.CLOCK_BOOTTIME
        monkeypatch.setattr(
            time, "clock_gettime", lambda clock: real_gettime(clock) + (self._seconds[1] if clock == boot else 0)
        )

    def move(self, *, wall_seconds: int = 0, boot_seconds: int = 0) -> None:
        """Show clocks that are so many seconds away from the host's."""
        self._seconds = wall_seconds, boot_seconds
        new = self._offsets.with_suffix(".new")
        new.write_text(f"{wall_seconds} {boot_seconds}")
        new.replace(self._offsets)
