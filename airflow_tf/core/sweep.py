"""Decisions about a sweep: which trials there are, which is stopped early, which is the best. All of them are pure."""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_tf.core.errors import CheckpointError

MAX_POINTS = 2000
"""So many points of a curve are kept."""
_NAME_CHARACTERS = 200
"""Airflow keeps 250 characters of the name of a mapped instance."""


class Curve:
    """What was reported of a metric, by step: the last one always, of the others at most ``MAX_POINTS``, evenly spread.

    Steps are divided into strips of one width, which doubles when there are too many points; the first one in each
    strip is kept, so that no value is taken for that of a step before it.
    """

    def __init__(self, points: Iterable[tuple[int, float]] = ()) -> None:
        self._steps: list[int] = []
        self._values: list[float] = []
        self._width = 1
        for step, value in points:
            self.add(step, value)

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def points(self) -> list[tuple[int, float]]:
        """What is kept, by step."""
        return list(zip(self._steps, self._values, strict=True))

    @property
    def last(self) -> tuple[int, float] | None:
        """The last step and its value."""
        return (self._steps[-1], self._values[-1]) if self._steps else None

    def add(self, step: int, value: float) -> None:
        """Take a value; of several for one step the last counts. Steps may come in any order."""
        place = bisect_left(self._steps, step)
        if place < len(self) and self._steps[place] == step:
            self._values[place] = value
        elif place < len(self) and self._width > 1:
            return  # between points of a curve that is thinned out
        else:
            if len(self) > 1 and self._strip(-1) == self._strip(-2):  # kept only because it was the last
                del self._steps[-1], self._values[-1]
                place -= 1
            self._steps.insert(place, step)
            self._values.insert(place, value)
            self._thin()

    def drop_from(self, step: int) -> None:
        """Forget what was reported at this step and later: training went on from before it."""
        place = bisect_left(self._steps, step)
        del self._steps[place:], self._values[place:]

    def value_at(self, step: int) -> float:
        """Return the last value up to a step, the first one where there was none yet; there must be one."""
        return self._values[max(bisect_right(self._steps, step) - 1, 0)]

    def _strip(self, place: int) -> int:
        return self._steps[place] // self._width

    def _thin(self) -> None:
        while len(self) > MAX_POINTS:
            self._width *= 2
            ends = len(self) - 1
            kept = [n for n in range(len(self)) if n in {0, ends} or self._strip(n) != self._strip(n - 1)]
            self._steps, self._values = [self._steps[n] for n in kept], [self._values[n] for n in kept]


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
    if own.last is None or own.last[0] < rule.min_steps:
        return ""
    step, value = own.last
    values = [_rank(rule.mode, curve.value_at(step)) for curve in others if curve.last and curve.last[0] >= step]
    if len(values) < max(rule.min_trials, 1):
        return ""
    median = statistics.median(values)
    if _rank(rule.mode, value) <= median:
        return ""
    sign = 1 if rule.mode == "min" else -1
    return (
        f"at step {step} its {rule.metric} {value:g} is worse than {sign * median:g}, the median of "
        f"{len(values)} other trials"
    )


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
