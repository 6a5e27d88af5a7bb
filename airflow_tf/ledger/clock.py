"""Clocks: the ledger's own, by which reservations expire, and that of the host that writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def _utc_now() -> datetime:
    return datetime.now(UTC)


def boot_seconds() -> float:
    """Return CLOCK_BOOTTIME: it goes on while the host sleeps, and nobody can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds within an epoch; times of different epochs do not compare.

    ``wall`` is for display only. ``host_now`` is this host's boot clock, whatever ``now`` is: what is written for
    readers on the same host compares with the start times of its processes.
    """

    epoch: str
    now: Callable[[], float]
    wall: Callable[[], datetime] = _utc_now
    host_now: Callable[[], float] = boot_seconds

    def stopped(self) -> Clock:
        """Return the clock as it stands: what is over does not depend on when within a transaction one looks."""
        now, wall = self.now(), self.wall()
        return replace(self, now=lambda: now, wall=lambda: wall)

    def values(self) -> dict[str, Any]:
        """Return the parameters of statements that every one may use."""
        return {"now": self.now(), "epoch": self.epoch, "at": self.wall_text()}

    def wall_text(self) -> str:
        """Return the wall time as ISO 8601 in UTC, to the second."""
        return self.wall().astimezone(UTC).isoformat(timespec="seconds")


def boot_clock() -> Clock:
    """Return CLOCK_BOOTTIME with the boot id as its epoch."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Clock(boot_id, boot_seconds)
