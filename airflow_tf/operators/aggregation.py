"""From the replicas' checkpoints to candidates for publication: what each method makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_tf.core.checkpoint.average import AverageReport, Begin, NotFinite, Optimizer, average
from airflow_tf.core.checkpoint.bundle import BundleReader
from airflow_tf.core.checkpoint.completeness import verify
from airflow_tf.core.checkpoint.folder import checkpoints
from airflow_tf.core.checkpoint.methods import (
    AVERAGE,
    BEST,
    EMA,
    LATEST,
    SOUP,
    TOP_K,
    Metrics,
    Soup,
    ema_weights,
    greedy_soup,
    ranked,
    weights_by,
)
from airflow_tf.core.checkpoint.numeric import has_mean
from airflow_tf.core.checkpoint.rules import step_of
from airflow_tf.core.checkpoint.similarity import are_unrelated
from airflow_tf.core.errors import CheckpointError

Evaluate = Callable[[Mapping[str, str]], Metrics]
"""Name -> prefix to name -> metrics."""


@dataclass(frozen=True, slots=True)
class Choices:
    """How checkpoints are aggregated: the declaration's ``checkpoints`` section.

    ``weights`` names the reported metric that weights an average, ``metric`` the one that ranks.
    """

    method: str = AVERAGE
    metric: str | None = None
    mode: str = "min"
    weights: str | None = None
    top: int = 0
    decay: float = 0.9
    last: int = 0
    not_finite: NotFinite = "refuse"
    optimizer: Optimizer = "average"


@dataclass(slots=True)
class Aggregation:
    """Aggregates into ``folder``. What it makes is described beside it, in ``<name>.report.json``."""

    choices: Choices
    folder: Path
    evaluate: Evaluate | None = None
    on_begin: Begin | None = None
    """What is told of the file of an average that is sure to be chosen, while it is written."""
    reports: dict[str, Any] = field(default_factory=dict)

    def run(self, candidates: Mapping[str, str], metrics: Metrics) -> tuple[dict[str, str], str | None]:
        """Return the candidates (name -> prefix), what was made among them, and the name of the chosen one, if any.

        :param metrics: what the replicas have reported, by the candidates' names.
        :raises CheckpointError: if a checkpoint is damaged, or what a method needs is missing.
        """
        found = dict(candidates)
        known = {name: metrics.get(name, {}) for name in found}
        only = next(iter(found)) if len(found) == 1 else None
        match self.choices.method:
            case method if method == AVERAGE:
                return found, only or self._average(found, found, AVERAGE, known)
            case method if method == TOP_K:
                return found, self._top(found, known)
            case method if method == LATEST:
                return found, max(found, key=lambda name: _step(found[name]))
            case method if method == BEST and self.choices.metric:
                return found, ranked(known, self.choices.metric, self.choices.mode)[0]
            case method if method == EMA:
                return self._moving(found)
            case method if method == SOUP:
                return found, only or self._soup(found)
        return found, only

    def _top(self, found: dict[str, str], metrics: Metrics) -> str:
        if self.choices.metric is None or not 0 < self.choices.top <= len(found):
            what = f"the best {self.choices.top} of {len(found)} checkpoints cannot be averaged"
            raise CheckpointError(what, todo="Give a metric and a number not above that of the replicas.")
        names = ranked(metrics, self.choices.metric, self.choices.mode)[: self.choices.top]
        return names[0] if len(names) == 1 else self._average(found, names, TOP_K, metrics)

    def _average(
        self, found: dict[str, str], names: Sequence[str] | dict[str, str], name: str, metrics: Metrics
    ) -> str:
        chosen = {each: metrics[each] for each in names}
        weights = weights_by(chosen, self.choices.weights) if self.choices.weights else ()
        found[name] = self._write([found[each] for each in names], name, weights, self.on_begin)
        return name

    def _moving(self, found: dict[str, str]) -> tuple[dict[str, str], str | None]:
        """Add to each replica the moving average over its last checkpoints."""
        made = {}
        for name, prefix in found.items():
            kept = _whole_before(prefix)
            if len(kept) < max(self.choices.last, 1):
                raise CheckpointError(
                    f"{name} has {len(kept)} whole checkpoints, and {EMA} is over {self.choices.last}",
                    todo="Let the program keep more (max_to_keep), or average fewer.",
                )
            kept = kept[-self.choices.last :] if self.choices.last else kept
            made[f"{name}-{EMA}"] = self._write(kept, f"{name}-{EMA}", ema_weights(len(kept), self.choices.decay))
        chosen = next(iter(made)) if len(made) == 1 else None
        return made | found, chosen

    def _soup(self, found: dict[str, str]) -> str:
        """Judge by the evaluation alone, whatever the replicas have reported."""
        if self.evaluate is None or self.choices.metric is None:
            raise CheckpointError(f"{SOUP} needs an evaluation and its metric", todo="Add an evaluate section.")
        evaluate, metric, mode = self.evaluate, self.choices.metric, self.choices.mode
        single = evaluate(found)
        order = ranked({name: single.get(name, {}) for name in found}, metric, mode)

        def value(names: Sequence[str]) -> float:
            if len(names) == 1:
                return float(single[names[0]][metric])
            prefix = self._write([found[name] for name in names], "trial", ())
            trial = evaluate({"trial": prefix})
            ranked(trial, metric, mode)  # says what is missing
            return float(trial["trial"][metric])

        soup = greedy_soup(order, value, mode)
        self._remember_soup(soup)
        if len(soup.members) == 1:
            return soup.members[0]
        found[SOUP] = self._write([found[name] for name in soup.members], SOUP, ())
        return SOUP

    def _remember_soup(self, soup: Soup) -> None:
        tried = [{"members": members, "value": value, "taken": taken} for members, value, taken in soup.tried]
        report = {"members": soup.members, "value": soup.value, "tried": tried}
        _write_report(self.folder / "soup.json", report)

    def _write(
        self, prefixes: Sequence[str], name: str, weights: Sequence[float], on_begin: Begin | None = None
    ) -> str:
        destination = str(self.folder / name)
        report: AverageReport = average(
            prefixes,
            destination,
            weights=weights,
            not_finite=self.choices.not_finite,
            optimizer=self.choices.optimizer,
            on_begin=on_begin,
        )
        _write_report(self.folder / f"{name}.report.json", report.to_json())
        self.reports[name] = {
            "left_out": report.left_out,
            "notes": list(report.notes),
            "weights": list(report.weights),
            "data": report.data,
        }
        return destination


def _write_report(file: Path, report: Mapping[str, Any]) -> None:
    try:
        file.write_text(json.dumps(report, indent=1, sort_keys=True))
    except OSError as error:
        raise CheckpointError(f"{file} cannot be written", error.strerror or str(error), "Make room.") from error


def same_start(prefixes: Sequence[str]) -> bool | None:
    """Tell whether replicas began with the same weights, by their checkpoints of step 0.

    Where one has none: False if their weights have nothing in common now, None if that is not known.
    """
    starts = []
    for prefix in prefixes:
        first = next(iter(checkpoints(Path(prefix).parent)), None)
        if first is None or first.step != 0 or first.problem:
            return False if are_unrelated(prefixes) else None
        with BundleReader(first.prefix) as reader:
            starts.append({key: e.crc32c for key, e in reader.entries.items() if has_mean(e.dtype) and not e.slices})
    return all(start == starts[0] for start in starts)


def _step(prefix: str) -> int:
    with BundleReader(prefix) as reader:
        return step_of(reader) or 0


def _whole_before(prefix: str) -> list[str]:
    """Return the whole checkpoints of a replica up to ``prefix``, oldest first."""
    kept = []
    for found in checkpoints(Path(prefix).parent):
        if not found.problem:
            verify(found.prefix)
            kept.append(found.prefix)
        if found.prefix == prefix:
            break
    return kept
