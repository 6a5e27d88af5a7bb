"""Trials that are stopped early: the curves of all trials of a sweep that this host has, compared while they train."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

from airflow_tf.core.launch import METRICS_FILE
from airflow_tf.core.states import ExitCause
from airflow_tf.core.sweep import Curve, MedianRule, worse_than_median
from airflow_tf.supervisor import results
from airflow_tf.supervisor.attempt import Alarm, Attempt

LOOK_SECONDS = 1.0


class CurveReader:
    """Reads one metric of many trials; of a file only what it has gained since the last look."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._known: dict[Path, tuple[int, dict[int, float]]] = {}

    def read(self, generation: Path) -> Curve:
        """Return the curve over the attempts of one generation of a replica: a later attempt's steps count."""
        curve: dict[int, float] = {}
        for attempt in sorted(generation.glob("attempt-*"), key=results.attempt_number):
            curve |= self._gained(attempt / METRICS_FILE)
        return curve

    def _gained(self, path: Path) -> dict[int, float]:
        offset, curve = self._known.get(path, (0, {}))
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:  # nothing was reported yet
            file.seek(offset)
            text = file.read()
            whole = text.rfind(b"\n") + 1
            for line in text[:whole].splitlines():
                curve |= self._value(line)
            self._known[path] = offset + whole, curve
        return curve

    def _value(self, line: bytes) -> dict[int, float]:
        """Return the value of one line by its step; NaN is one, a line without step and metric is not."""
        try:
            data = json.loads(line)
            return {int(data["step"]): float(data[self._metric])}
        except (ValueError, TypeError, KeyError, OverflowError):
            return {}


class MedianWatch:
    """Watch a trial: end it as a success when it is worse than the median of the others.

    :param folder: of the gang, in which every trial of this host has its own, those that have ended as well.
    """

    def __init__(self, rule: MedianRule, folder: Path) -> None:
        self._rule = rule
        self._folder = folder
        self._reader = CurveReader(rule.metric)

    async def __call__(self, attempt: Attempt) -> Alarm:
        """Return when the trial is to be stopped."""
        (number, run), *_ = attempt.runs.items()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            why = await asyncio.to_thread(self.look, run.folder)
            if why:
                attempt.note(f"stopped early: {why}")
                return Alarm(number, ExitCause.STOPPED_EARLY, f"stopped early: {why}", is_success=True)

    def look(self, attempt: Path) -> str:
        """Say why the trial with the folder ``attempt`` is stopped, an empty text where it goes on."""
        generation = attempt.parent
        own = self._reader.read(generation)
        if max(own, default=0) < self._rule.min_steps:
            return ""
        others = [folder for folder in self._folder.glob("replica-*") if folder != generation.parent]
        return worse_than_median(self._rule, own, [self._reader.read(_newest(folder)) for folder in others])


def _newest(replica: Path) -> Path:
    """Return the folder of a replica's newest generation: what was cleared does not count."""
    return max(replica.glob("generation-*"), key=results.attempt_number, default=replica)
