"""What becomes of a gang when replicas end: tables of the pure decisions."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.launch import Plan
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.core.verdict import (
    Answer,
    Ended,
    Step,
    answer,
    evaluator_of,
    lacks_culprit,
    may_rejoin,
    next_step,
    parse_success,
    rejoining,
    settle,
)

OK = Outcome(AttemptState.SUCCEEDED, checkpoint="ck-9")
BAD = Outcome(AttemptState.FAILED, ExitCause.KILLED, "killed by SIGKILL\nLast lines", -9)
RESET = Outcome(AttemptState.FAILED, ExitCause.USER_ERROR, "connection reset", 1)
LOST_PEERS = Outcome(AttemptState.FAILED, ExitCause.VICTIM, "tasks are unhealthy", 1)
STUCK = Outcome(AttemptState.LOST, ExitCause.INFRASTRUCTURE, "survived SIGKILL")
ENDED_BY_US = Outcome(AttemptState.FAILED, ExitCause.KILLED, "killed by SIGTERM", -15)

SYNC = {"strategy": "sync", "roles": {"worker": 3}}
ASYNC = {"strategy": "async", "roles": {"chief": 1, "worker": 2, "ps": 1}}
V1 = {"strategy": "v1_cluster", "roles": {"chief": 1, "worker": 2, "ps": 1}}
WATCHED = {"strategy": "sync", "roles": {"worker": 2, "evaluator": 1}}
CHIEF = {"success": "chief"}
TWO = {"success": "at_least", "at_least": 2}


@pytest.mark.parametrize(
    ("plan", "ended", "step"),
    [
        (SYNC, {}, Step.GO_ON),
        (SYNC, {1: OK}, Step.GO_ON),  # a worker may end earlier than others
        (SYNC, {0: OK, 2: OK}, Step.GO_ON),
        (SYNC, {0: OK, 1: OK, 2: OK}, Step.DONE),
        (SYNC, {1: BAD}, Step.FAILED),
        (SYNC | CHIEF, {1: BAD}, Step.FAILED),  # the others would hang
        (SYNC, {0: OK, 2: BAD}, Step.FAILED),
        (SYNC | CHIEF, {0: OK, 2: BAD}, Step.GO_ON),
        (SYNC | CHIEF, {0: OK, 1: OK, 2: BAD}, Step.DONE),
        (SYNC | CHIEF, {0: BAD}, Step.FAILED),
        (SYNC | TWO, {0: OK, 1: BAD}, Step.GO_ON),
        (SYNC | TWO, {0: OK, 1: BAD, 2: OK}, Step.DONE),
        (SYNC | TWO, {0: OK, 1: BAD, 2: BAD}, Step.FAILED),
        (ASYNC, {0: OK}, Step.DONE),  # workers and ps wait for ever
        (ASYNC, {1: BAD}, Step.FAILED),
        (ASYNC | CHIEF, {1: BAD}, Step.GO_ON),
        (ASYNC | CHIEF, {1: BAD, 2: BAD}, Step.FAILED),  # the chief would wait for ever
        (ASYNC | CHIEF, {0: OK, 1: BAD, 2: BAD}, Step.DONE),
        (ASYNC | TWO, {1: BAD}, Step.GO_ON),
        (ASYNC | TWO, {1: BAD, 2: BAD}, Step.FAILED),
        (ASYNC | CHIEF, {3: BAD}, Step.FAILED),  # nothing trains without its parameters
        (V1, {0: OK}, Step.GO_ON),
        (V1, {0: OK, 1: OK, 2: OK}, Step.DONE),
        (V1 | CHIEF, {1: BAD}, Step.GO_ON),
        (V1 | CHIEF, {0: OK, 1: BAD, 2: OK}, Step.DONE),
        (WATCHED, {2: BAD}, Step.GO_ON),  # training does not depend on an evaluator
        (WATCHED, {2: OK}, Step.GO_ON),
        (WATCHED, {0: OK, 1: OK}, Step.DONE),
        (WATCHED | TWO, {0: OK, 1: OK, 2: BAD}, Step.DONE),  # two others train
        (WATCHED, {1: BAD, 2: OK}, Step.FAILED),
    ],
)
def test_a_gang_goes_on_is_done_or_has_failed(plan: dict[str, Any], ended: dict[int, Outcome], step: Step) -> None:
    assert next_step(Plan(**plan), ended) is step


@pytest.mark.parametrize(
    ("plan", "replica", "outcome", "rejoins"),
    [
        (ASYNC, 1, BAD, True),
        (ASYNC, 0, BAD, False),  # nobody schedules steps meanwhile
        (ASYNC, 3, BAD, False),  # its variables are gone
        (V1, 2, BAD, True),
        ({"strategy": "v1_cluster", "roles": {"worker": 2, "ps": 1}}, 0, BAD, False),  # the first worker leads
        (SYNC, 1, BAD, False),
        (WATCHED, 2, BAD, True),
        (WATCHED, 1, BAD, False),
        (ASYNC, 1, RESET, False),  # the program's own error
        (ASYNC, 1, LOST_PEERS, False),
        (ASYNC, 1, Outcome(AttemptState.FAILED, ExitCause.DEVICE_LOST, "Xid 79"), False),
        (ASYNC, 1, Outcome(AttemptState.LOST, ExitCause.INFRASTRUCTURE, "zygote"), False),
        ({}, 0, BAD, False),  # has a drive of its own
    ],
)
def test_one_that_the_others_take_back_is_started_again_alone(
    plan: dict[str, Any], replica: int, outcome: Outcome, rejoins: bool
) -> None:
    assert may_rejoin(Plan(**plan), replica, outcome) is rejoins


def test_a_failed_evaluator_is_nobodys_cause_and_keeps_its_own() -> None:
    plan = Plan(**WATCHED)
    assert evaluator_of(plan) == 2
    assert evaluator_of(Plan(**SYNC)) is None
    done = settle(plan, {0: Ended(OK, 3.0), 1: Ended(OK, 3.0), 2: Ended(BAD, 1.0)})
    assert done.root.state is AttemptState.SUCCEEDED
    assert done.outcomes[2] == BAD
    assert answer(plan, 2, BAD, done.root, tries_left=1) is Answer.FAIL
    assert answer(Plan(**WATCHED | CHIEF), 2, BAD, done.root, tries_left=1) is Answer.SKIP
    failed = settle(plan, {0: Ended(BAD, 3.0, by_us=True), 1: Ended(BAD, 2.0), 2: Ended(RESET, 1.0)})
    assert failed.root.message.startswith("worker 1: ")
    assert lacks_culprit(plan, {1: LOST_PEERS, 2: RESET})
    cut_off = settle(plan, {0: Ended(OK, 1.0), 1: Ended(OK, 1.0), 2: Ended(ENDED_BY_US, 9.0, by_us=True)})
    assert cut_off.outcomes[2].state is AttemptState.SUCCEEDED


def test_the_first_death_is_the_root_cause_and_the_others_are_its_victims() -> None:
    ended = {0: Ended(RESET, 12.0), 1: Ended(BAD, 11.0), 2: Ended(ENDED_BY_US, 13.0, by_us=True)}
    verdict = settle(Plan(**SYNC), ended)
    assert (verdict.root.cause, verdict.root.exit_code) == (ExitCause.KILLED, -9)
    assert verdict.outcomes[1] == verdict.root
    assert verdict.root.message.startswith("worker 1: killed by SIGKILL")
    assert {verdict.outcomes[0].cause, verdict.outcomes[2].cause} == {ExitCause.VICTIM}
    assert verdict.outcomes[0].message == "ended because worker 1 failed: killed by SIGKILL; then: connection reset"
    assert verdict.outcomes[2].message == "ended because worker 1 failed: killed by SIGKILL"


LOST_PEERS = Outcome(AttemptState.FAILED, ExitCause.VICTIM, "it lost its peers", 1)


@pytest.mark.parametrize(
    ("plan", "ended", "news", "back"),
    [
        (ASYNC, {}, {1: BAD}, [1]),
        (ASYNC, {}, {1: BAD, 2: BAD}, [1, 2]),
        (ASYNC, {}, {1: BAD, 3: BAD}, []),  # the gang begins again as a whole, once
        (ASYNC, {}, {0: OK, 1: BAD}, []),  # the work is done
        (ASYNC | CHIEF, {2: BAD}, {1: BAD}, [1]),
        (ASYNC, {}, {1: RESET}, []),
    ],
)
def test_what_ended_together_is_judged_together_before_one_is_started_again(
    plan: dict[str, Any], ended: dict[int, Outcome], news: dict[int, Outcome], back: list[int]
) -> None:
    assert rejoining(Plan(**plan), ended, news) == back


def test_one_that_only_lost_its_peers_is_not_the_culprit_although_it_ended_first() -> None:
    ended = {0: Ended(LOST_PEERS, 11.0), 1: Ended(RESET, 19.0), 2: Ended(ENDED_BY_US, 20.0, by_us=True)}
    verdict = settle(Plan(**SYNC), ended)
    assert verdict.root.message == "worker 1: connection reset"
    assert verdict.outcomes[0].message == "ended because worker 1 failed: connection reset; then: it lost its peers"


@pytest.mark.parametrize(
    ("plan", "ended", "lacks"),
    [
        (SYNC, {0: LOST_PEERS}, True),
        (SYNC, {0: LOST_PEERS, 2: OK}, True),
        (SYNC, {0: LOST_PEERS, 1: BAD}, False),
        (SYNC, {0: LOST_PEERS, 1: LOST_PEERS, 2: LOST_PEERS}, False),  # nobody is left to be it
        ({}, {0: LOST_PEERS}, False),
    ],
)
def test_the_culprit_may_end_after_its_peers(plan: dict[str, Any], ended: dict[int, Outcome], lacks: bool) -> None:
    assert lacks_culprit(Plan(**plan), ended) is lacks


def test_a_replica_that_ended_well_has_not_succeeded_if_its_gang_failed() -> None:
    verdict = settle(Plan(**SYNC), {0: Ended(OK, 1), 1: Ended(BAD, 2), 2: Ended(OK, 3)})
    assert [verdict.outcomes[number].cause for number in (0, 1, 2)] == [
        ExitCause.VICTIM,
        ExitCause.KILLED,
        ExitCause.VICTIM,
    ]
    assert verdict.outcomes[0].checkpoint == "ck-9"


def test_what_was_ended_because_the_work_was_done_has_succeeded() -> None:
    ended = {0: Ended(OK, 1)} | {number: Ended(ENDED_BY_US, 2, by_us=True) for number in (1, 2, 3)}
    verdict = settle(Plan(**ASYNC), ended)
    assert {outcome.state for outcome in verdict.outcomes.values()} == {AttemptState.SUCCEEDED}
    assert verdict.root == OK


def test_what_cannot_be_ended_says_so_itself() -> None:
    verdict = settle(Plan(**SYNC), {0: Ended(BAD, 1), 1: Ended(STUCK, 9, by_us=True), 2: Ended(ENDED_BY_US, 2, True)})
    assert verdict.outcomes[1] == STUCK
    verdict = settle(Plan(**V1), {n: Ended(OK, 1) for n in (0, 1, 2)} | {3: Ended(STUCK, 9, by_us=True)})
    assert verdict.root.state is AttemptState.SUCCEEDED
    assert verdict.outcomes[3] == STUCK


def test_a_tolerated_failure_keeps_its_own_cause() -> None:
    verdict = settle(Plan(**SYNC, **CHIEF), {0: Ended(OK, 1), 1: Ended(OK, 1), 2: Ended(BAD, 2)})
    assert verdict.root == OK
    assert verdict.outcomes[2] == BAD


def test_a_stop_ends_all_of_a_gang_also_what_had_ended_well() -> None:
    stop = Outcome(AttemptState.STOPPED, ExitCause.MARKED, "marked failed")
    ended = {0: Ended(OK, 1), 1: Ended(ENDED_BY_US, 2, by_us=True), 2: Ended(ENDED_BY_US, 2, by_us=True)}
    verdict = settle(Plan(**SYNC), ended, stop=stop)
    assert verdict.root == stop
    assert {(outcome.state, outcome.cause) for outcome in verdict.outcomes.values()} == {
        (AttemptState.STOPPED, ExitCause.MARKED)
    }


def test_a_failure_before_a_stop_stays_the_root_cause() -> None:
    stop = Outcome(AttemptState.STOPPED, ExitCause.STOPPED, "its task was killed")
    ended = {0: Ended(ENDED_BY_US, 3, by_us=True), 1: Ended(BAD, 1), 2: Ended(ENDED_BY_US, 3, by_us=True)}
    assert settle(Plan(**SYNC), ended, stop=stop).root.cause is ExitCause.KILLED


def test_a_gang_that_saves_and_ends_well_when_stopped_has_succeeded() -> None:
    stop = Outcome(AttemptState.STOPPED, ExitCause.STOPPED, "enough")
    verdict = settle(Plan(**SYNC), {number: Ended(OK, 1, by_us=True) for number in range(3)}, stop=stop)
    assert verdict.root == OK


def test_an_alarm_names_the_replica_at_fault() -> None:
    hang = Outcome(AttemptState.FAILED, ExitCause.HANG, "no step for 60 s")
    ended = {number: Ended(ENDED_BY_US, 2, by_us=True) for number in range(3)}
    verdict = settle(Plan(**SYNC), ended, alarm=(2, hang))
    assert verdict.root.message == "worker 2: no step for 60 s"
    assert verdict.outcomes[0].message == "ended because worker 2 failed: no step for 60 s"
    alone = settle(Plan(), {4: Ended(ENDED_BY_US, 2, by_us=True)}, alarm=(4, hang))
    assert alone.root == hang


def test_a_replica_of_its_own_is_judged_alone() -> None:
    assert settle(Plan(), {2: Ended(BAD)}).outcomes == {2: BAD}


VICTIM = Outcome(AttemptState.FAILED, ExitCause.VICTIM, "ended because worker 1 failed")
WRONG = Outcome(AttemptState.FAILED, ExitCause.USER_ERROR, "exit code 1", 1)
STOPPED = Outcome(AttemptState.STOPPED, ExitCause.STOPPED, "its task was killed")


@pytest.mark.parametrize(
    ("plan", "replica", "outcome", "root", "tries_left", "expected"),
    [
        ({}, 0, OK, None, 0, Answer.SUCCEED),
        ({}, 0, BAD, None, 0, Answer.RETRY),
        ({}, 0, WRONG, None, 2, Answer.FAIL),
        (CHIEF, 1, WRONG, None, 2, Answer.SKIP),
        (CHIEF, 1, BAD, None, 2, Answer.RETRY),
        (CHIEF, 1, BAD, None, 0, Answer.SKIP),
        (CHIEF, 0, WRONG, None, 2, Answer.FAIL),
        (TWO, 0, WRONG, None, 2, Answer.SKIP),
        (TWO, 0, STOPPED, None, 0, Answer.FAIL),
        (SYNC, 0, OK, OK, 0, Answer.SUCCEED),
        (SYNC, 0, VICTIM, BAD, 1, Answer.RETRY),
        (SYNC, 0, VICTIM, WRONG, 1, Answer.FAIL),  # no victim starts again what its culprit cannot survive
        (SYNC, 0, VICTIM, None, 1, Answer.RETRY),
        (SYNC | CHIEF, 2, BAD, OK, 1, Answer.SKIP),
    ],
)
def test_what_a_task_does_with_an_outcome(
    plan: dict[str, Any], replica: int, outcome: Outcome, root: Outcome | None, tries_left: int, expected: Answer
) -> None:
    assert answer(Plan(**plan), replica, outcome, root, tries_left=tries_left) is expected


@pytest.mark.parametrize(
    ("value", "parsed"), [("all", ("all", 0)), ("chief", ("chief", 0)), ({"at_least": 2}, ("at_least", 2))]
)
def test_success_policies_are_read(value: Any, parsed: tuple[str, int]) -> None:
    assert parse_success(value, 3) == parsed


@pytest.mark.parametrize("value", ["any", {"at_least": 0}, {"at_least": 4}, {"at_least": True}, {"more": 1}, 2, None])
def test_other_success_policies_are_refused(value: Any) -> None:
    with pytest.raises(DeclarationError, match="no success policy for 3 replicas"):
        parse_success(value, 3)
