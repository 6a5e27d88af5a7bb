"""What becomes of an attempt when its replicas end, fail or are ended: pure decisions, tested by tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import AttemptState, ExitCause


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


def settle(ended: Mapping[int, Ended]) -> Verdict:
    """Give every replica of an attempt its outcome; the first root cause is kept, the others are its victims."""
    bad = [number for number, end in ended.items() if end.outcome.state is not AttemptState.SUCCEEDED]
    if not bad:
        first = ended[min(ended)]
        return Verdict(first.outcome, {number: end.outcome for number, end in ended.items()})
    culprit = min(bad, key=lambda number: (ended[number].by_us, ended[number].died_at, number))
    root = ended[culprit].outcome
    reason = f"ended because replica {culprit} failed: {root.message.splitlines()[0] if root.message else root.cause}"
    outcomes = {
        number: root
        if number == culprit
        else replace(end.outcome, state=root.state, cause=ExitCause.VICTIM, message=reason)
        for number, end in ended.items()
    }
    return Verdict(root, outcomes)
