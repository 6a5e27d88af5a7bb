"""Contract of views, generations and attempts."""

from __future__ import annotations

import math

import pytest

from airflow_tf.core.errors import LedgerError
from airflow_tf.core.identity import View
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import AttemptState, ExitCause
from tests.ledger.conftest import devices

DONE = Outcome(AttemptState.SUCCEEDED, exit_code=0, checkpoint="/c/ckpt-3", metrics={"step": 30, "mae": 1.5})


@pytest.fixture
def key(ledger, gang):
    found = gang("flights")
    ledger.open_gang(found, 2, "/run")
    return found


@pytest.fixture
def member(reserve, ledger, key):
    return reserve("flights", [0, 1], devices(2)).members[0]


def test_the_first_view_opens_the_first_generation(ledger, key):
    record = ledger.enter(key, 0, View("a", 1, 1))
    assert (record.generation, record.first_try, record.attempts, record.outcome) == (1, 1, 0, None)


def test_a_retry_stays_in_its_generation_and_a_cleared_task_opens_another(ledger, key):
    ledger.enter(key, 0, View("a", 1, 1))
    assert ledger.enter(key, 0, View("b", 2, 1)).generation == 1
    cleared = ledger.enter(key, 0, View("c", 3, 3))
    assert (cleared.generation, cleared.first_try) == (2, 3)
    assert ledger.enter(key, 0, View("d", 4, 3)).generation == 2
    assert ledger.enter(key, 0, View("b", 2, 1)).generation == 2
    assert ledger.enter(key, 1, View("e", 1, 1)).generation == 1


def test_the_newest_view_owns_the_replica(ledger, key):
    old, new = View("a", 1, 1), View("b", 2, 1)
    assert ledger.is_newest_view(key, 0, old)
    ledger.enter(key, 0, new)
    ledger.enter(key, 0, old)
    assert ledger.is_newest_view(key, 0, new)
    assert not ledger.is_newest_view(key, 0, old)
    assert ledger.is_newest_view(key, 0, View("c", 3, 1))
    assert ledger.is_newest_view(key, 1, old)


def test_waiting_is_counted_over_reschedules_of_one_try(ledger, key, time):
    view = View("a", 1, 1)
    ledger.enter(key, 0, view)
    time.seconds += 30
    ledger.enter(key, 0, view)
    assert ledger.seconds_waiting(key, 0, view) == 30
    ledger.enter(key, 0, View("b", 2, 1))
    assert ledger.seconds_waiting(key, 0, View("b", 2, 1)) == 0
    with pytest.raises(LedgerError, match="newer try"):
        ledger.seconds_waiting(key, 0, view)
    with pytest.raises(LedgerError, match="never entered"):
        ledger.seconds_waiting(key, 1, view)


def test_a_gang_must_be_opened_and_have_the_replica(ledger, gang, key, reserve):
    with pytest.raises(LedgerError, match="not opened"):
        ledger.enter(gang("unknown"), 0, View("a", 1, 1))
    reserve("only reserved", [0], devices(1))
    with pytest.raises(LedgerError, match="not opened"):
        ledger.enter(gang("only reserved"), 0, View("a", 1, 1))
    for number in (2, -1):
        with pytest.raises(LedgerError, match=r"has no replica .* it has 2"):
            ledger.enter(key, number, View("a", 1, 1))


def test_opening_again_is_fine(ledger, key):
    ledger.enter(key, 1, View("a", 1, 1))
    ledger.open_gang(key, 2, "/run")
    assert set(ledger.replicas(key)) == {1}


def test_attempts_are_counted_in_their_generation_and_the_last_outcome_is_told(ledger, key, member):
    ledger.enter(key, 0, View("a", 1, 1))
    failed = Outcome(AttemptState.FAILED, ExitCause.KILLED, "killed", -9)
    assert ledger.start_attempt(key, 0, 1, member, "t1") == 1
    ledger.end_attempt(key, 0, 1, 1, failed)
    assert ledger.replicas(key)[0].outcome == failed
    assert ledger.start_attempt(key, 0, 1, member, "t2") == 2
    assert ledger.replicas(key)[0].outcome is None
    ledger.end_attempt(key, 0, 1, 2, DONE)
    record = ledger.replicas(key)[0]
    assert (record.attempts, record.outcome, record.fence) == (2, DONE, member.fence)
    ledger.enter(key, 0, View("c", 3, 3))
    record = ledger.replicas(key)[0]
    assert (record.generation, record.attempts, record.outcome, record.fence) == (2, 0, None, 0)
    assert ledger.start_attempt(key, 0, 2, member, "t3") == 1


def test_the_first_outcome_stays(ledger, key, member):
    ledger.enter(key, 0, View("a", 1, 1))
    ledger.start_attempt(key, 0, 1, member, "t1")
    ledger.end_attempt(key, 0, 1, 1, DONE)
    ledger.end_attempt(key, 0, 1, 1, Outcome(AttemptState.LOST))
    ledger.update_attempt(key, 0, 1, 1, pid=1, step=99)
    assert ledger.replicas(key)[0].outcome == DONE


def test_a_new_attempt_loses_one_that_never_ended(ledger, key, member):
    ledger.enter(key, 0, View("a", 1, 1))
    ledger.start_attempt(key, 0, 1, member, "t1")
    ledger.start_attempt(key, 0, 1, member, "t2")
    ledger.end_attempt(key, 0, 1, 1, DONE)
    ledger.end_attempt(key, 0, 1, 2, Outcome(AttemptState.STOPPED, ExitCause.STOPPED))
    assert ledger.replicas(key)[0].outcome.state is AttemptState.STOPPED


def test_a_token_is_used_once_and_a_lost_answer_is_given_again(ledger, key, member):
    ledger.enter(key, 0, View("a", 1, 1))
    assert ledger.start_attempt(key, 0, 1, member, "t1") == 1
    assert ledger.start_attempt(key, 0, 1, member, "t1") == 1
    ledger.update_attempt(key, 0, 1, 1, pid=5)
    with pytest.raises(LedgerError, match="used before"):
        ledger.start_attempt(key, 0, 1, member, "t1")


def test_an_attempt_needs_live_devices_and_a_generation(ledger, key, member):
    with pytest.raises(LedgerError, match="no generation 1"):
        ledger.start_attempt(key, 0, 1, member, "t1")
    ledger.enter(key, 0, View("a", 1, 1))
    ledger.release(member)
    with pytest.raises(LedgerError, match="no longer holds"):
        ledger.start_attempt(key, 0, 1, member, "t1")


def test_nonsense_about_attempts_is_refused(ledger, key, member):
    ledger.enter(key, 0, View("a", 1, 1))
    with pytest.raises(LedgerError, match="no attempt 4 of replica 0"):
        ledger.update_attempt(key, 0, 1, 4, pid=1)
    ledger.start_attempt(key, 0, 1, member, "t1")
    with pytest.raises(LedgerError, match="cannot end as running"):
        ledger.end_attempt(key, 0, 1, 1, Outcome(AttemptState.RUNNING))


def test_metrics_that_are_no_numbers_are_kept_as_nothing(ledger, key, member):
    ledger.enter(key, 0, View("a", 1, 1))
    ledger.start_attempt(key, 0, 1, member, "t1")
    ledger.end_attempt(key, 0, 1, 1, Outcome(AttemptState.FAILED, metrics={"loss": math.nan, "step": math.inf, "a": 1}))
    assert ledger.replicas(key)[0].outcome.metrics == {"loss": None, "step": None, "a": 1}


def test_what_an_evaluation_wrote_is_kept_without_nan_however_deep_it_lies(ledger, key, member):
    ledger.enter(key, 0, View("a", 1, 1))
    ledger.start_attempt(key, 0, 1, member, "t1")
    evaluation = {"candidates": {"average": {"mae": math.nan, "rows": [1, -math.inf]}}, "baselines": {}}
    ledger.end_attempt(key, 0, 1, 1, Outcome(AttemptState.SUCCEEDED, metrics={"evaluation": evaluation}))
    found = ledger.replicas(key)[0].outcome.metrics["evaluation"]
    assert found == {"candidates": {"average": {"mae": None, "rows": [1, None]}}, "baselines": {}}


def test_whatever_a_program_says_is_kept(reserve, ledger, gang, key, member):
    ledger.enter(key, 0, View("a", 1, 1))
    ledger.start_attempt(key, 0, 1, member, "t1")
    said = Outcome(
        AttemptState.FAILED, ExitCause.USER_ERROR, "a\0b \udcff é \N{SNOWMAN}", 1, None, {"note\0": "\0\udcff"}
    )
    ledger.end_attempt(key, 0, 1, 1, said)
    assert ledger.replicas(key)[0].outcome.message == "a\N{REPLACEMENT CHARACTER}b ? é \N{SNOWMAN}"
