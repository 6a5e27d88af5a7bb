"""Life cycles: of a reservation's member and of a replica's attempt. Each enum carries the facts asked of it."""

from __future__ import annotations

from enum import StrEnum


class MemberState(StrEnum):
    """RESERVED (may expire) -> CONFIRMED (a supervisor holds the device's lock) -> RELEASED or EXPIRED or REVOKED."""

    RESERVED = "reserved"
    CONFIRMED = "confirmed"
    RELEASED = "released"
    EXPIRED = "expired"
    REVOKED = "revoked"

    @property
    def holds_device(self) -> bool:
        """Tell whether the device is taken."""
        return self in {MemberState.RESERVED, MemberState.CONFIRMED}


class AttemptState(StrEnum):
    """STARTING -> RUNNING -> SUCCEEDED, FAILED, STOPPED (asked to) or LOST (its supervisor or zygote died)."""

    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def is_terminal(self) -> bool:
        """Tell whether the attempt has ended."""
        return self not in {AttemptState.STARTING, AttemptState.RUNNING}


class ExitCause(StrEnum):
    """Why an attempt ended; decides whether another one may help."""

    NONE = "none"
    USER_ERROR = "user_error"
    NO_CHECKPOINT = "no_checkpoint"
    CONFIG_REFUSED = "config_refused"
    CUDA_OOM = "cuda_oom"
    HOST_OOM = "host_oom"
    PREEMPTED = "preempted"
    DEVICE_LOST = "device_lost"
    RENDEZVOUS = "rendezvous"
    HANG = "hang"
    VICTIM = "victim"
    KILLED = "killed"
    STOPPED = "stopped"
    MARKED = "marked"
    CANCELLED = "cancelled"
    STOPPED_EARLY = "stopped_early"
    INFRASTRUCTURE = "infrastructure"

    @property
    def may_restart(self) -> bool:
        """Tell whether another attempt may end otherwise."""
        return self not in _FINAL_CAUSES

    @property
    def needs_other_device(self) -> bool:
        """Tell whether another attempt must not have the same devices: the task's next try reserves anew."""
        return self is ExitCause.DEVICE_LOST


MARKED_REASON = "its task was "
"""How the reason of a stop begins that a user asked for by marking or clearing a task."""

CLEARED_REASON = f"{MARKED_REASON}cleared"
"""Reason of a stop after which a new try of the task is sure to come, and opens a new generation."""


def cause_of_stop(reason: str) -> ExitCause:
    """Return what a stop that was asked for in the ledger is recorded as: the ledger carries its words only."""
    return ExitCause.MARKED if reason.startswith(MARKED_REASON) else ExitCause.STOPPED


_FINAL_CAUSES = {
    ExitCause.NONE,
    ExitCause.USER_ERROR,
    ExitCause.NO_CHECKPOINT,
    ExitCause.CONFIG_REFUSED,
    ExitCause.CUDA_OOM,
    ExitCause.MARKED,
    ExitCause.CANCELLED,
    ExitCause.STOPPED_EARLY,
}
