"""Which checkpoints or published versions are kept: a pure decision."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_tf.core.errors import DeclarationError


@dataclass(frozen=True, slots=True)
class Kept:
    """What retention sees of one checkpoint or version: name, age in seconds, and the metric that ranks it."""

    name: str
    age_seconds: float
    metric: float | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """Rules of which each keeps something; what none keeps may go.

    ``last`` newest; ``best`` by metric; every ``every``-th, counted from the oldest; all younger than
    ``younger_than_seconds``.

    :raises DeclarationError: if no rule keeps anything, or one is impossible.
    """

    last: int = 0
    best: int = 0
    every: int = 0
    younger_than_seconds: float = 0.0
    mode: str = "min"

    def __post_init__(self) -> None:
        if min(self.last, self.best, self.every, self.younger_than_seconds) < 0 or self.mode not in {"min", "max"}:
            raise DeclarationError(
                "a rule of retention is impossible", f"{self}", "Give numbers that are not negative."
            )
        if not (self.last or self.best or self.every or self.younger_than_seconds):
            why = "no rule keeps anything"
            raise DeclarationError("everything would be removed", why, "Give last, best, every or younger_than.")


def to_keep(items: Sequence[Kept], rules: Keep, protected: Mapping[str, str]) -> dict[str, str]:
    """Return for each item, given oldest first, why it is kept; empty where it may go.

    The newest is always kept, and whatever is ``protected`` (name -> reason).
    """
    reasons = dict.fromkeys((item.name for item in items), "")

    def keep(names: Sequence[str], reason: str) -> None:
        for name in names:
            reasons[name] = reasons[name] or reason

    for name in reasons.keys() & protected.keys():
        reasons[name] = protected[name]
    keep([item.name for item in items[-1:]], "the newest")
    keep([item.name for item in items[-rules.last :]] if rules.last else [], f"among the last {rules.last}")
    keep(_best(items, rules), f"among the best {rules.best}")
    keep([item.name for item in items[:: rules.every]] if rules.every else [], f"every {rules.every}th")
    young = [item.name for item in items if item.age_seconds < rules.younger_than_seconds]
    keep(young, f"younger than {rules.younger_than_seconds:g} s")
    return reasons


def _best(items: Sequence[Kept], rules: Keep) -> list[str]:
    sign = 1.0 if rules.mode == "min" else -1.0
    ranked = sorted(
        (sign * item.metric, -number, item.name)
        for number, item in enumerate(items)
        if item.metric is not None and math.isfinite(item.metric)
    )
    return [name for _, _, name in ranked[: rules.best]]
