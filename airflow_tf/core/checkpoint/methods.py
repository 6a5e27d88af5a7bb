"""How several checkpoints become one: who is chosen, who counts how much, what a soup takes in. Pure decisions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_tf.core.errors import CheckpointError

AVERAGE, BEST, LATEST, TOP_K, EMA, SOUP, CHIEF = (
    "average",
    "best",
    "latest",
    "top_k",
    "ema",
    "greedy_soup",
    "chief",
)
METHODS = (AVERAGE, BEST, LATEST, TOP_K, EMA, SOUP, CHIEF)
"""Names of all methods; ``chief`` takes a gang's only checkpoint."""

Metrics = Mapping[str, Mapping[str, Any]]
"""Name of a checkpoint -> its metrics."""


def ranked(metrics: Metrics, metric: str, mode: str) -> list[str]:
    """Return the names from the best value of ``metric`` to the worst; equals stay in the order given.

    :raises CheckpointError: if one has no such number.
    """
    values = {name: _number(name, row, metric) for name, row in metrics.items()}
    sign = 1.0 if mode == "min" else -1.0
    return sorted(values, key=lambda name: sign * values[name])


def weights_by(metrics: Metrics, metric: str) -> list[float]:
    """Return the value of ``metric`` (like a number of samples) of each as its weight.

    :raises CheckpointError: if one has no such number greater than 0.
    """
    values = {name: _number(name, row, metric) for name, row in metrics.items()}
    for name, value in values.items():
        if value <= 0:
            todo = "Report a number greater than 0, like the samples that it has seen."
            raise CheckpointError(f"{name} cannot be weighted by {metric!r}", f"its value is {value:g}", todo)
    return list(values.values())


def ema_weights(count: int, decay: float) -> list[float]:
    """Return the weights of an exponential moving average over ``count`` checkpoints, oldest first.

    The first starts the average, each later one moves it by ``1 - decay``; they add up to 1.

    :raises CheckpointError: if ``decay`` is not between 0 and 1.
    """
    if not 0 < decay < 1:
        raise CheckpointError(f"a decay of {decay:g} is impossible", todo="Give a number between 0 and 1, like 0.9.")
    later = [(1 - decay) * decay ** (count - number) for number in range(2, count + 1)]
    return [decay ** (count - 1), *later]


@dataclass(frozen=True, slots=True)
class Soup:
    """What a greedy soup is made of, its value, and what was tried: (members, value, taken) in order."""

    members: tuple[str, ...]
    value: float
    tried: tuple[tuple[tuple[str, ...], float, bool], ...]


def greedy_soup(order: Sequence[str], evaluate: Callable[[Sequence[str]], float], mode: str) -> Soup:
    """Add checkpoints to the average one by one, best first, each only if the metric of the average improves.

    Wortsman et al. 2022, "Model soups", algorithm 1, but equal is not enough: it must improve.

    :param order: names, best first.
    :param evaluate: returns the metric of the average of the named.
    :raises CheckpointError: if there is nothing, or the first has no finite value.
    """
    if not order:
        raise CheckpointError("there is no checkpoint to make a soup of")
    sign = 1.0 if mode == "min" else -1.0
    members: tuple[str, ...] = ()
    best, tried = math.inf, []
    for name in order:
        candidate = (*members, name)
        value = evaluate(candidate)
        taken = math.isfinite(value) and sign * value < best
        tried.append((candidate, value, taken))
        if taken:
            members, best = candidate, sign * value
    if not members:
        raise CheckpointError("no checkpoint has a finite metric", todo="Look why the replicas diverged.")
    return Soup(members, sign * best, tuple(tried))


def _number(name: str, row: Mapping[str, Any], metric: str) -> float:
    value = row.get(metric)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        found = ", ".join(sorted(row)) or "none"
        raise CheckpointError(
            f"{name} has no metric {metric!r}" if metric not in row else f"metric {metric!r} of {name} is {value!r}",
            f"its metrics are: {found}",
            "Report it as a finite number (airflow_tf.runtime, or AIRFLOW_TF_METRICS_FILE).",
        )
    return float(value)
