"""Decisions about starting, restarting, stopping and forgetting replicas: pure functions, tested by tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_tf.core.causes import NO_EVIDENCE, Evidence, classify
from airflow_tf.core.launch import EXIT_REFUSED
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import AttemptState, ExitCause

LINGER_SECONDS = 60.0
"""A supervisor with nothing to run waits this long for another view."""

IN_PROCESS_ORPHAN_GRACE_SECONDS = 60.0
"""Orphan grace where no other try can come."""

DEFERRED_ORPHAN_GRACE_SECONDS = 600.0
"""Orphan grace of a replica whose task is deferred: a triggerer may be restarted meanwhile."""

ORPHAN_MARGIN_SECONDS = 120.0

SHOWN_LINES = 20
"""Lines of a program's output that are shown with the reason of its failure."""


def orphan_grace_seconds(
    *, tries_left: int, heartbeat_timeout_seconds: float, detection_seconds: float, retry_delay_seconds: float
) -> float:
    """Return how long a replica may run without a view: until the next try must have attached, plus a margin."""
    if tries_left <= 0:
        return IN_PROCESS_ORPHAN_GRACE_SECONDS
    return heartbeat_timeout_seconds + detection_seconds + retry_delay_seconds + ORPHAN_MARGIN_SECONDS


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known when a replica's process has ended.

    ``wait_status`` is as by ``os.waitpid``, None where nobody could read it (the zygote died first).
    ``stop_reason`` is set if the supervisor sent the signal: then the program did not end by itself, whatever its
    code; ``checkpoint`` is the last complete one; ``output`` is the end of what the program wrote, of which the last
    lines are shown.
    """

    wait_status: int | None
    stop_reason: str | None = None
    stop_cause: ExitCause = ExitCause.STOPPED
    checkpoint: str | None = None
    require_checkpoint: bool = True
    output: str = ""
    refusal: str = ""
    steps: dict[str, float] | None = None
    evidence: Evidence = NO_EVIDENCE


def judge(ending: Ending) -> Outcome:
    """Turn the end of a process into an outcome, with the cause in words and the last lines of its output."""
    code = _exit_code(ending.wait_status)
    state, cause, message = _verdict(ending, code)
    tail = "\n".join(ending.output.splitlines()[-SHOWN_LINES:])
    if state is AttemptState.FAILED and tail and cause is not ExitCause.CONFIG_REFUSED:
        message = f"{message}\nLast lines of its output:\n{tail}"
    return Outcome(state, cause, message, code, ending.checkpoint, dict(ending.steps or {}))


def _exit_code(wait_status: int | None) -> int | None:
    """Return the exit code, negative for a signal, None if unknown."""
    if wait_status is None:
        return None
    low, high = wait_status & 0x7F, (wait_status >> 8) & 0xFF
    return -low if low else high


def _verdict(ending: Ending, code: int | None) -> tuple[AttemptState, ExitCause, str]:
    if ending.stop_reason is not None:
        return AttemptState.STOPPED, ending.stop_cause, ending.stop_reason
    if code == 0 and not (ending.require_checkpoint and ending.checkpoint is None):
        return AttemptState.SUCCEEDED, ExitCause.NONE, ""
    if code is None:
        return AttemptState.LOST, ExitCause.INFRASTRUCTURE, "its zygote died, and the kernel ended it with it"
    if code == 0:
        return AttemptState.FAILED, ExitCause.NO_CHECKPOINT, _NO_CHECKPOINT
    if code == EXIT_REFUSED and ending.refusal:
        return AttemptState.FAILED, ExitCause.CONFIG_REFUSED, ending.refusal
    evidence = replace(ending.evidence, has_stepped="step" in (ending.steps or {}))
    return AttemptState.FAILED, *classify(code, ending.output, evidence)


_NO_CHECKPOINT = (
    "the program ended with exit code 0 but left no complete checkpoint in AIRFLOW_TF_CHECKPOINT_DIR. "
    "Save one with tf.train.CheckpointManager, or set checkpoints.aggregate: none"
)


def may_restart(outcome: Outcome, *, restarts_used: int, restarts: int) -> bool:
    """Tell whether the supervisor starts the replica again within the same task try."""
    failed = outcome.state in {AttemptState.FAILED, AttemptState.LOST}
    curable = outcome.cause.may_restart and not outcome.cause.needs_other_device
    return failed and curable and restarts_used < restarts


def is_final(outcome: Outcome | None, *, tries_left: int) -> bool:
    """Tell whether no other try of this replica is to be expected."""
    if outcome is None:
        return False
    return outcome.state is AttemptState.SUCCEEDED or tries_left <= 0 or not outcome.cause.may_restart
