"""What becomes of an attempt when its replicas end, fail or are ended: pure decisions, tested by tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from airflow_tf.core.cluster import CHIEF, EVALUATOR, PS, TRAINING, WORKER, replica_name, tasks, trainers
from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.launch import Plan
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import AttemptState, ExitCause

ALL, AT_LEAST = "all", "at_least"
LEAD = 0
"""The replica whose checkpoint is the gang's: the chief, or the first worker."""


def parse_success(value: Any, count: int) -> tuple[str, int]:  # noqa: ANN401 (whatever was declared)
    """Read a success policy, ``all``, ``chief`` or ``{at_least: n}``, as (policy, n); ``count`` replicas train.

    :raises DeclarationError: if it is none of them, or asks for more replicas than there are.
    """
    if value in (ALL, CHIEF):
        return str(value), 0
    number = value.get(AT_LEAST) if isinstance(value, Mapping) and len(value) == 1 else None
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= count:
        todo = f"Write all, chief, or {{at_least: n}} with n from 1 to {count}."
        raise DeclarationError(f"{value!r} is no success policy for {count} replicas", todo=todo)
    return AT_LEAST, number


class Answer(StrEnum):
    """What a task does with its replica's outcome: succeed, end skipped, let Airflow try again, or fail for good."""

    SUCCEED = "succeed"
    SKIP = "skip"
    RETRY = "retry"
    FAIL = "fail"


def answer(plan: Plan, replica: int, outcome: Outcome, root: Outcome | None, *, tries_left: int) -> Answer:
    """Decide what a task does with the outcome of its replica.

    In a gang the root cause decides for all, so that no victim starts again what its culprit cannot survive.

    :param root: what the gang came to, None where that is not known or the replica is no gang's.
    """
    if outcome.state is AttemptState.SUCCEEDED:
        return Answer.SUCCEED
    ended_by_itself = outcome.state in {AttemptState.FAILED, AttemptState.LOST}
    if plan.is_gang:
        if root is not None and root.state is AttemptState.SUCCEEDED:
            return Answer.FAIL if plan.success == ALL else Answer.SKIP  # of all, only an evaluator may fail beside it
        return Answer.RETRY if (root or outcome).cause.may_restart else Answer.FAIL
    if outcome.cause.may_restart and (tries_left or plan.success == ALL):
        return Answer.RETRY
    needed = plan.success == ALL or (plan.success == CHIEF and replica == LEAD)
    return Answer.SKIP if ended_by_itself and not needed else Answer.FAIL


class Step(StrEnum):
    """What follows from the replicas that have ended: the attempt goes on, its work is done, or it has failed."""

    GO_ON = "go_on"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Ended:
    """How one replica of an attempt ended, looked at alone.

    :param outcome: as judged from its process and folder.
    :param died_at: orders the deaths; what was never started died first.
    :param by_us: whether the supervisor ended it.
    """

    outcome: Outcome
    died_at: float = 0.0
    by_us: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an attempt came to: ``root`` is why it ended so, ``outcomes`` what each replica is told."""

    root: Outcome
    outcomes: dict[int, Outcome]


def next_step(plan: Plan, ended: Mapping[int, Outcome]) -> Step:
    """Decide from the replicas that have ended by themselves. One that is no gang's has none to wait for.

    A parameter server never ends by itself, nor does a worker of an ``async`` gang: their work is done when the
    others' is. Of a ``sync`` gang nobody can go on without a worker, whatever the success policy. Training never
    depends on an evaluator.
    """
    if not plan.is_gang:
        return Step.DONE if ended else Step.GO_ON
    roles = [task.role for task in tasks(plan.roles)]
    ended = {number: outcome for number, outcome in ended.items() if roles[number] != EVALUATOR}
    good = {number for number, outcome in ended.items() if outcome.state is AttemptState.SUCCEEDED}
    bad = set(ended) - good
    if any(not _is_tolerated(plan, roles, number, good, bad) for number in bad):
        return Step.FAILED
    finite = {LEAD} if plan.strategy == "async" else {n for n, role in enumerate(roles) if role in TRAINING}
    return Step.DONE if finite <= set(ended) else Step.GO_ON


def _is_tolerated(plan: Plan, roles: list[str], number: int, good: set[int], bad: set[int]) -> bool:
    """Tell whether the gang can do without a replica that failed."""
    if plan.success == ALL or number == LEAD:
        return False
    if LEAD not in good and (roles[number] == PS or plan.strategy == "sync"):
        return False
    if (
        LEAD not in good
        and plan.strategy == "async"
        and bad.issuperset(n for n, role in enumerate(roles) if role == WORKER)
    ):
        return False  # nobody is left to take the chief's steps, which would wait for ever
    lost = sum(roles[other] in TRAINING for other in bad)
    return plan.success == CHIEF or trainers(plan.roles, len(roles)) - lost >= plan.at_least


def evaluator_of(plan: Plan) -> int | None:
    """Return the number of the replica that evaluates checkpoints while the others train."""
    return sum(plan.roles.values()) - 1 if EVALUATOR in plan.roles else None


def may_rejoin(plan: Plan, replica: int, outcome: Outcome) -> bool:
    """Tell whether a replica that failed may be started again alone while the others of its gang go on.

    A coordinator and parameter servers take a worker back at its old address. Workers in sync take nobody back, and
    a lost parameter server loses its variables. One that only lost its peers is a sign that somebody else failed.
    """
    if not plan.is_gang or outcome.state is not AttemptState.FAILED or _is_symptom(outcome):
        return False
    role = tasks(plan.roles)[replica].role
    is_taken_back = role == EVALUATOR or (role == WORKER and replica != LEAD and plan.strategy != "sync")
    return is_taken_back and outcome.cause.may_restart and not outcome.cause.needs_other_device


def rejoining(plan: Plan, ended: Mapping[int, Outcome], news: Mapping[int, Outcome]) -> list[int]:
    """Return which of those that have just ended are started again alone; none where the attempt does not go on.

    :param ended: what had ended before.
    :param news: what was found together: one incident.
    """
    back = [number for number, outcome in news.items() if may_rejoin(plan, number, outcome)]
    lost = {**ended, **{number: outcome for number, outcome in news.items() if number not in back}}
    return back if next_step(plan, lost) is Step.GO_ON else []


def lacks_culprit(plan: Plan, ended: Mapping[int, Outcome]) -> bool:
    """Tell whether all replicas of a gang that failed only lost their peers: the one that left them has not ended yet.

    A program of TensorFlow may take longer to end after its error than its peers to notice.
    """
    failed = [ended[number] for number in _failed(plan, ended)]
    return plan.is_gang and len(ended) < sum(plan.roles.values()) and all(map(_is_symptom, failed))


def _failed(plan: Plan, ended: Mapping[int, Outcome]) -> list[int]:
    """Return which replicas failed whose failure may be the gang's."""
    evaluator = evaluator_of(plan)
    return [n for n, outcome in ended.items() if outcome.state is not AttemptState.SUCCEEDED and n != evaluator]


def _is_symptom(outcome: Outcome) -> bool:
    return outcome.cause in {ExitCause.VICTIM, ExitCause.RENDEZVOUS}


def settle(
    plan: Plan,
    ended: Mapping[int, Ended],
    *,
    stop: Outcome | None = None,
    alarm: tuple[int, Outcome] | None = None,
) -> Verdict:
    """Give every replica of an attempt its outcome; the first root cause is kept, the others are its victims.

    :param stop: why somebody ended the attempt.
    :param alarm: (replica at fault, why) where a watchdog ended the attempt.
    """
    if not plan.is_gang:
        number, end = next(iter(ended.items()))
        found: dict[str, Any] = {"checkpoint": end.outcome.checkpoint, "metrics": end.outcome.metrics}
        outcome = replace(alarm[1], **found) if alarm and end.by_us else end.outcome
        return Verdict(outcome, {number: outcome})
    by_themselves = {number: end.outcome for number, end in ended.items() if not end.by_us}
    step = next_step(plan, by_themselves)
    if step is Step.DONE:
        return _success(ended)
    if step is Step.FAILED:
        failed = _failed(plan, by_themselves)
        culprit = min(failed, key=lambda n: (_is_symptom(ended[n].outcome), ended[n].died_at, n))
        return _blame(plan, ended, culprit, ended[culprit].outcome)
    if alarm is not None:
        number, outcome = alarm
        return _blame(plan, ended, number, replace(outcome, checkpoint=ended[number].outcome.checkpoint))
    everything = {number: end.outcome for number, end in ended.items()}
    if stop is None or next_step(plan, everything) is Step.DONE:
        return Verdict(everything[LEAD], everything)
    return Verdict(stop, {number: _told(end, stop.state, stop.cause, stop.message) for number, end in ended.items()})


def _success(ended: Mapping[int, Ended]) -> Verdict:
    """Count what the supervisor ended because the work was done as a success."""
    outcomes = {
        number: _told(end, AttemptState.SUCCEEDED, ExitCause.NONE, "") if end.by_us else end.outcome
        for number, end in ended.items()
    }
    return Verdict(outcomes[LEAD], outcomes)


def _blame(plan: Plan, ended: Mapping[int, Ended], culprit: int, root: Outcome) -> Verdict:
    name, why = replica_name(plan.roles, culprit), _first_line(root)
    outcomes = {}
    for number, end in ended.items():
        own = "" if end.by_us or end.outcome.state is AttemptState.SUCCEEDED else _first_line(end.outcome)
        own = f"; then: {own}" if own not in {"", why} else ""
        outcomes[number] = _told(end, AttemptState.FAILED, ExitCause.VICTIM, f"ended because {name} failed: {why}{own}")
    message = root.message if root.message.startswith(name) else f"{name}: {root.message}"
    root = replace(root, message=message)
    return Verdict(root, outcomes | {culprit: root})


def _told(end: Ended, state: AttemptState, cause: ExitCause, message: str) -> Outcome:
    """Return what a replica is told; one that outlived its end (the supervisor could not end it) keeps its own."""
    if end.by_us and end.outcome.state is AttemptState.LOST:
        return end.outcome
    return replace(end.outcome, state=state, cause=cause, message=message)


def _first_line(outcome: Outcome) -> str:
    return outcome.message.partition("\n")[0] or outcome.cause.value
