"""Devices whose last replica left something that cannot be ended: their locks are kept until nothing of it is left."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_tf.core.devices import Member
from airflow_tf.devices.locks import DeviceLock
from airflow_tf.supervisor.attempt import ReplicaRun
from airflow_tf.supervisor.health import Look, holds_gpus, leftover
from airflow_tf.supervisor.sweep import find_tree

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Kept:
    member: Member
    locks: Sequence[DeviceLock]
    run: ReplicaRun


@dataclass(slots=True)
class Quarantine:
    """Locks that outlive their reservations. Whoever asks for such a device finds it locked, and what the lock says.

    Nothing but the lock is needed: should this process die, the next holder finds the same processes by the token in
    the lock, or the same memory by its probe.
    """

    look: Look
    _kept: list[_Kept] = field(default_factory=list)
    _next_look: float = 0.0

    def __len__(self) -> int:
        """Return how many replicas' devices are kept."""
        return len(self._kept)

    def keep(self, member: Member, locks: Sequence[DeviceLock], run: ReplicaRun) -> None:
        """Keep the locks of a member."""
        self._kept.append(_Kept(member, locks, run))
        self._next_look = time.monotonic() + LOOK_SECONDS
        what = f"processes {run.survivors}" if run.survivors else run.leftover
        log.warning("replica %s: its devices stay locked: %s", member.replica, what)

    def recheck(self) -> None:
        """Give back what has become clean; looks every half minute and blocks for the look."""
        if not self._kept or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        readings = self.look() if any(holds_gpus(kept.member) for kept in self._kept) else []
        for kept in list(self._kept):
            if find_tree(kept.run.launch.token, kept.run.marks) or leftover(kept.member, readings):
                continue
            for lock in kept.locks:
                lock.give_back()
            self._kept.remove(kept)
            log.info("replica %s: nothing is left on its devices: unlocked", kept.member.replica)
