"""Trials that are stopped early: the curves of all trials of a sweep that this host has, compared while they train."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from airflow_tf.core.launch import METRICS_FILE
from airflow_tf.core.states import ExitCause
from airflow_tf.core.sweep import Curve, MedianRule, worse_than_median
from airflow_tf.supervisor import results
from airflow_tf.supervisor.attempt import Alarm, Attempt

LOOK_SECONDS = 1.0


@dataclass(slots=True)
class _Trial:
    """What is known of a trial: its curve, and how far which attempt was read, of which generation.

    ``reported`` is the last attempt that has reported the metric.
    """

    generation: int
    curve: Curve = field(default_factory=Curve)
    attempt: int = 0
    offset: int = 0
    reported: int = 0


class CurveReader:
    """The curves of one metric of all trials; a supervisor has one, read on when somebody asks and it is time.

    :param folder: of the gang, in which every trial of this host has its own, those that have ended as well.
    """

    def __init__(self, metric: str, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._metric = metric
        self._folder = folder
        self._clock = clock
        self._trials: dict[Path, _Trial] = {}
        self._read_at = float("-inf")
        self._lock = threading.Lock()  # the trials that run look from threads of their own

    def judge(self, rule: MedianRule, attempt: Path, *, fresh: bool = False) -> str:
        """Say why the trial whose attempt has the folder ``attempt`` is stopped, an empty text where it goes on.

        What an attempt before has reported does not count against it: nothing is decided until this one has reported.

        :param fresh: whether no attempt of any trial goes on from what an earlier one has saved.
        """
        with self._lock:
            if self._clock() >= self._read_at + LOOK_SECONDS:
                self._read_all(fresh=fresh)
                self._read_at = self._clock()
            own = self._trials.get(attempt.parent.parent)
            where = results.attempt_number(attempt.parent), results.attempt_number(attempt)
            if own is None or (own.generation, own.reported) != where:
                return ""
            others = (trial.curve for trial in self._trials.values() if trial is not own)
            return worse_than_median(rule, own.curve, others)

    def _read_all(self, *, fresh: bool) -> None:
        """Read what the newest generation of each trial has gained: what was cleared does not count."""
        for folder in self._folder.glob("replica-*"):
            try:
                self._read_trial(folder, fresh=fresh)
            except (OSError, ValueError) as error:  # ValueError: a folder of somebody else's
                results.say_unreadable(f"{folder}: {error}")

    def _read_trial(self, folder: Path, *, fresh: bool) -> None:
        newest = max(folder.glob("generation-*"), key=results.attempt_number, default=None)
        if newest is not None:
            trial = self._trials.get(folder)
            if trial is None or trial.generation != results.attempt_number(newest):
                trial = self._trials[folder] = _Trial(results.attempt_number(newest))
            self._read_on(trial, newest, fresh=fresh)

    def _read_on(self, trial: _Trial, generation: Path, *, fresh: bool) -> None:
        """Take what the attempts have gained; where one begins, what came later of those before it is gone."""
        attempts = {results.attempt_number(path): path for path in generation.glob("attempt-*")}
        for number in sorted(number for number in attempts if number >= trial.attempt):
            if number > trial.attempt:
                trial.attempt, trial.offset = number, 0
            for step, value in self._gained(trial, attempts[number] / METRICS_FILE):
                if trial.reported != number:
                    trial.reported = number
                    if fresh:
                        trial.curve = Curve()
                    trial.curve.drop_from(step)
                trial.curve.add(step, value)

    def _gained(self, trial: _Trial, path: Path) -> Iterator[tuple[int, float]]:
        """Yield step and value of each whole line that the file has gained."""
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:  # nothing was reported yet
            file.seek(trial.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                trial.offset += len(line)
                yield from self._point(line)

    def _point(self, line: bytes) -> Iterator[tuple[int, float]]:
        """Yield step and value of a line; NaN is one, a line without step and metric is not."""
        data = results.reported_values(line)
        with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError):
            yield int(data["step"]), float(data[self._metric])


class MedianWatch:
    """Watch a trial: end it as a success when it is worse than the median of the others."""

    def __init__(self, rule: MedianRule, reader: CurveReader) -> None:
        self._rule = rule
        self._reader = reader

    async def __call__(self, attempt: Attempt) -> Alarm:
        """Return when the trial is to be stopped."""
        (number, run), *_ = attempt.runs.items()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            why = await asyncio.to_thread(self._reader.judge, self._rule, run.folder, fresh=run.launch.fresh)
            if why:
                attempt.note(f"stopped early: {why}")
                return Alarm(number, ExitCause.STOPPED_EARLY, f"stopped early: {why}", is_success=True)
