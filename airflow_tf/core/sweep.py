"""Decisions about a sweep: which trials there are, which is stopped early, which is the best. All of them are pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_tf.core.errors import CheckpointError

Curve = Mapping[int, float]
"""Step -> value of the metric that was reported at it."""

_NAME_CHARACTERS = 200
"""Airflow keeps 250 characters of the name of a mapped instance."""


@dataclass(frozen=True, slots=True)
class MedianRule:
    """When a trial is stopped early: its metric is worse than the median of the other trials' at the same step.

    :param mode: whether a smaller or a larger value is better: ``min`` or ``max``.
    :param min_steps: the first step at which a trial is compared.
    :param min_trials: so many others must have come as far.
    """

    metric: str
    mode: str = "min"
    min_steps: int = 1
    min_trials: int = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a trial that succeeded.

    :param value: its last value of the sweep's metric, None where it has reported none.
    :param stopped_early: why it was stopped, empty where it went to its end.
    """

    number: int
    value: float | None
    stopped_early: str = ""


def expand_grid(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of the values, in the order of the keys: the last key's value changes fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def trial_name(arguments: Mapping[str, Any]) -> str:
    """Return a trial's arguments as people write them: ``lr=0.1 batch=32``."""
    text = " ".join(f"{key}={value}" for key, value in arguments.items())
    return text if len(text) <= _NAME_CHARACTERS else f"{text[: _NAME_CHARACTERS - 1]}…"


def worse_than_median(rule: MedianRule, own: Curve, others: Iterable[Curve]) -> str:
    """Say why a trial is stopped early, an empty text where it goes on.

    It is compared at its last step with what each other one had at that step, the last value up to it; others count
    that have come as far. A value that is no number is worse than any.
    """
    step = max(own, default=0)
    if not own or step < rule.min_steps:
        return ""
    values = [_rank(rule.mode, _value_at(curve, step)) for curve in others if max(curve, default=-1) >= step]
    if len(values) < max(rule.min_trials, 1):
        return ""
    median = statistics.median(values)
    if _rank(rule.mode, own[step]) <= median:
        return ""
    sign = 1 if rule.mode == "min" else -1
    return (
        f"at step {step} its {rule.metric} {own[step]:g} is worse than {sign * median:g}, the median of "
        f"{len(values)} other trials"
    )


def _value_at(curve: Curve, step: int) -> float:
    return curve[max((known for known in curve if known <= step), default=min(curve))]


def _rank(mode: str, value: float) -> float:
    """Return a number that is the smaller the better the value is."""
    if math.isnan(value):
        return math.inf
    return value if mode == "min" else -value


def ranked_trials(trials: Iterable[Trial], mode: str) -> list[Trial]:
    """Return the trials, the best first: those that went to their end, then those that were stopped early.

    Equal ones stay in the order of their numbers. One without a value comes last.
    """

    def place(trial: Trial) -> tuple[bool, bool, float, int]:
        rank = math.inf if trial.value is None else _rank(mode, trial.value)
        return trial.value is None, bool(trial.stopped_early), rank, trial.number

    return sorted(trials, key=place)


def best_trial(trials: Sequence[Trial], metric: str, mode: str) -> Trial:
    """Return the best of the trials.

    :raises CheckpointError: if none has reported the metric.
    """
    first = next(iter(ranked_trials(trials, mode)), None)
    if first is None or first.value is None:
        raise CheckpointError(
            f"no trial has reported {metric!r}",
            f"{len(trials)} have succeeded" if trials else "none has succeeded with a checkpoint",
            f"Let the program report it: airflow_tf.runtime.context().report(step, {metric}=…).",
        )
    return first
