"""Decisions, by tables."""

from __future__ import annotations

import signal

import pytest

from airflow_tf.core.ledger import Outcome
from airflow_tf.core.policy import Ending, is_final, judge, may_restart, orphan_grace_seconds
from airflow_tf.core.states import AttemptState, ExitCause

OK, KILLED = 0, signal.SIGKILL


@pytest.mark.parametrize(
    ("ending", "state", "cause"),
    [
        (Ending(OK, checkpoint="ck-1"), AttemptState.SUCCEEDED, ExitCause.NONE),
        (Ending(OK), AttemptState.FAILED, ExitCause.NO_CHECKPOINT),
        (Ending(OK, require_checkpoint=False), AttemptState.SUCCEEDED, ExitCause.NONE),
        (Ending(OK, checkpoint="ck-1", stop_reason="saved and left"), AttemptState.STOPPED, ExitCause.STOPPED),
        (Ending(OK, stop_reason="early"), AttemptState.STOPPED, ExitCause.STOPPED),
        (
            Ending(signal.SIGTERM, stop_reason="x", stop_cause=ExitCause.CANCELLED),
            AttemptState.STOPPED,
            ExitCause.CANCELLED,
        ),
        (Ending(KILLED), AttemptState.FAILED, ExitCause.KILLED),
        (Ending(3 << 8), AttemptState.FAILED, ExitCause.USER_ERROR),
        (Ending(78 << 8, refusal="unknown field"), AttemptState.FAILED, ExitCause.CONFIG_REFUSED),
        (Ending(78 << 8), AttemptState.FAILED, ExitCause.USER_ERROR),
        (Ending(None), AttemptState.LOST, ExitCause.INFRASTRUCTURE),
    ],
)
def test_the_end_of_a_process_has_one_meaning(ending: Ending, state: AttemptState, cause: ExitCause) -> None:
    outcome = judge(ending)
    assert (outcome.state, outcome.cause) == (state, cause)


def test_a_failure_shows_the_last_lines_of_output() -> None:
    assert "KeyError: 'x'" in judge(Ending(1 << 8, output="Traceback\nKeyError: 'x'")).message


@pytest.mark.parametrize(
    ("cause", "used", "budget", "again"),
    [
        (ExitCause.KILLED, 0, 1, True),
        (ExitCause.KILLED, 1, 1, False),
        (ExitCause.INFRASTRUCTURE, 0, 1, True),
        (ExitCause.USER_ERROR, 0, 5, False),
        (ExitCause.CONFIG_REFUSED, 0, 5, False),
    ],
)
def test_only_what_another_attempt_can_cure_is_restarted(cause: ExitCause, used: int, budget: int, again: bool) -> None:
    assert may_restart(Outcome(AttemptState.FAILED, cause), restarts_used=used, restarts=budget) is again


def test_a_stopped_replica_is_never_restarted_by_its_supervisor() -> None:
    assert not may_restart(Outcome(AttemptState.STOPPED, ExitCause.STOPPED), restarts_used=0, restarts=5)


def test_the_orphan_grace_lasts_until_the_next_try_must_have_attached() -> None:
    assert orphan_grace_seconds(
        tries_left=1, heartbeat_timeout_seconds=300, detection_seconds=10, retry_delay_seconds=60
    ) == pytest.approx(490)
    assert orphan_grace_seconds(
        tries_left=0, heartbeat_timeout_seconds=300, detection_seconds=10, retry_delay_seconds=60
    ) == pytest.approx(60)


@pytest.mark.parametrize(
    ("outcome", "tries_left", "final"),
    [
        (None, 0, False),
        (Outcome(AttemptState.SUCCEEDED), 3, True),
        (Outcome(AttemptState.FAILED, ExitCause.KILLED), 1, False),
        (Outcome(AttemptState.FAILED, ExitCause.KILLED), 0, True),
        (Outcome(AttemptState.FAILED, ExitCause.USER_ERROR), 1, True),
    ],
)
def test_a_replica_is_final_when_no_try_can_follow(outcome: Outcome | None, tries_left: int, final: bool) -> None:
    assert is_final(outcome, tries_left=tries_left) is final
