"""Whether replicas get on: what counts as progress, when a lack of it is a hang, who is slower than the others.

The decisions (:class:`NoProgress`, :class:`Stragglers`) know no clock and no process; the watches feed them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from airflow_tf.core.states import ExitCause
from airflow_tf.supervisor import results
from airflow_tf.supervisor.attempt import Alarm, Attempt, ReplicaRun
from airflow_tf.supervisor.output import say
from airflow_tf.supervisor.stacks import Target, is_frozen, show_stacks, state_of

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_SECONDS = 5.0
SLOW_FACTOR = 0.5
"""A replica with less than this part of the median step rate is a straggler."""
SLOW_WINDOW_SECONDS = 60.0
"""Time over which step rates are compared."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What is seen of a replica: its last reported step, when a file of its checkpoints last changed, its output."""

    step: int | None = None
    checkpoint_ns: int = 0
    output_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stall:
    """A replica that does not get on, and since how long."""

    replica: int
    seconds: float
    sign: str


@dataclass(slots=True)
class NoProgress:
    """Find the replica that has not got on for ``timeout_seconds``.

    Progress is another step or a change of a checkpoint's files; of a replica that never reported a step also output.
    Such a one counts as hanging only if none of its attempt gets on: a parameter server reports nothing, and of some
    gangs only the chief reports. A replica's end is progress too. Time between two looks counts for at most
    ``longest_look_seconds``: when this process was itself not run, the replicas may not have been either.
    """

    timeout_seconds: float
    longest_look_seconds: float
    _seen: dict[int, Signs] = field(default_factory=dict)
    _idle: dict[int, float] = field(default_factory=dict)
    _all_idle: float = 0.0
    _running: frozenset[int] = frozenset()
    _looked_at: float | None = None

    def look(self, signs: Mapping[int, Signs], now: float) -> Stall | None:
        """Take one look at the replicas that run; return who hangs."""
        passed = 0.0 if self._looked_at is None else min(now - self._looked_at, self.longest_look_seconds)
        self._looked_at = now
        self._all_idle = self._all_idle + passed if self._running == signs.keys() else 0.0
        self._running = frozenset(signs)
        for number, sign in signs.items():
            before = self._seen.get(number)
            progressed = before is None or _has_progressed(before, sign)
            self._idle[number] = 0.0 if progressed else self._idle[number] + passed
            self._all_idle = 0.0 if progressed else self._all_idle
            self._seen[number] = sign
        if not signs:
            return None
        idle = {
            number: self._idle[number] if sign.step is not None else self._all_idle for number, sign in signs.items()
        }
        longest = max(idle, key=lambda number: (idle[number], self._idle[number]))
        if idle[longest] < self.timeout_seconds:
            return None
        step = signs[longest].step
        return Stall(
            longest, idle[longest], "no step was ever reported" if step is None else f"the last step is {step}"
        )


def _has_progressed(before: Signs, now: Signs) -> bool:
    if (before.step, before.checkpoint_ns) != (now.step, now.checkpoint_ns):
        return True
    return now.step is None and before.output_bytes != now.output_bytes


@dataclass(slots=True)
class Stragglers:
    """Find replicas that make less than half the steps of the median; each is named once."""

    window_seconds: float = SLOW_WINDOW_SECONDS
    _steps: dict[int, deque[tuple[float, int]]] = field(default_factory=dict)
    _named: set[int] = field(default_factory=set)

    def look(self, steps: Mapping[int, int | None], now: float) -> dict[int, str]:
        """Take one look at the last steps of siblings; return what is to be said of which."""
        rates = {number: rate for number, step in steps.items() if (rate := self._rate(number, step, now)) is not None}
        reported = [step for step in steps.values() if step is not None]
        if len(rates) < 2:  # noqa: PLR2004 (nobody to compare with)
            return {}
        median = statistics.median(rates.values())
        slow = {n for n, rate in rates.items() if rate < SLOW_FACTOR * median} - self._named
        self._named |= slow
        return {
            number: f"replica {number} is slow: step {steps[number]}, {rates[number]:.3g} steps per second; "
            f"the median is step {statistics.median(reported):.0f}, {median:.3g} steps per second"
            for number in sorted(slow)
        }

    def _rate(self, number: int, step: int | None, now: float) -> float | None:
        """Return the steps per second of a whole window of one attempt, None before there is one."""
        seen = self._steps.setdefault(number, deque())
        if step is None or (seen and step < seen[-1][1]):
            seen.clear()
        if step is None:
            return None
        seen.append((now, step))
        while len(seen) > 1 and seen[1][0] <= now - self.window_seconds:
            seen.popleft()
        start, first = seen[0]
        return (step - first) / (now - start) if now - start >= self.window_seconds else None


def read_signs(run: ReplicaRun) -> Signs:
    """Look at what a replica has left in its folders."""
    output = run.folder / results.OUTPUT_FILE
    return Signs(
        results.last_step(run.folder),
        max(_changes_ns(Path(run.launch.checkpoint_folder)), default=0),
        output.stat().st_size if output.exists() else 0,
    )


def _read_each(runs: Mapping[int, ReplicaRun], read: Callable[[ReplicaRun], T]) -> dict[int, T]:
    """Return what was read of each, without those of which nothing can be read: nobody is judged by that."""
    found: dict[int, T] = {}
    for number, run in runs.items():
        try:
            found[number] = read(run)
        except OSError as error:
            results.say_unreadable(f"replica {number}: {error}")
    return found


def _read_all(runs: Mapping[int, ReplicaRun]) -> dict[int, Signs]:
    """Look at all; the steps that an evaluator reports come only when others have saved a checkpoint."""
    signs = _read_each(runs, read_signs)
    return {n: replace(sign, step=None) if runs[n].launch.watched_folder else sign for n, sign in signs.items()}


def _changes_ns(folder: Path) -> Iterator[int]:
    """Yield when each file below a folder last changed; the program may remove files and folders meanwhile."""
    for parent, _, names in os.walk(folder):  # unlike Path.rglob it passes over folders that vanish
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield Path(parent, name).stat().st_mtime_ns


class ProgressWatch:
    """Watch an attempt: end it with all stacks in its output when it hangs.

    An evaluator that is left alone is not looked at: the training has ended, and ``train.evaluator_grace`` bounds it.

    :param timeout_seconds: longest time without progress.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds

    async def __call__(self, attempt: Attempt) -> Alarm:
        """Return when a replica hangs; the stacks of all are written by then."""
        look_seconds = min(LOOK_SECONDS, self._timeout_seconds / 10)
        decision = NoProgress(self._timeout_seconds, 3 * look_seconds)
        while True:
            await asyncio.sleep(look_seconds)
            runs = {number: run for number, run in attempt.runs.items() if not run.has_ended}
            if all(run.launch.watched_folder for run in runs.values()):
                continue
            signs = await asyncio.to_thread(_read_all, runs)
            stall = decision.look(signs, time.monotonic())
            if stall is not None:
                return await self._raise(attempt, runs, stall)

    async def _raise(self, attempt: Attempt, runs: Mapping[int, ReplicaRun], stall: Stall) -> Alarm:
        """Name the one that is stopped, if one is: the others wait for it."""
        pids = {number: run.process.pid for number, run in runs.items() if run.process is not None}
        frozen = [number for number, pid in pids.items() if is_frozen(pid)]
        culprit = frozen[0] if frozen else stall.replica
        limit = f"train.progress_timeout {self._timeout_seconds:.0f} s"
        why = f"no progress for {stall.seconds:.0f} s ({stall.sign}; {limit})"
        attempt.note(f"{why}; the stacks of all processes follow in their output, then the attempt ends")
        targets = [
            Target(number, run.process.pid, run.process.send, run.folder / results.OUTPUT_FILE)
            for number, run in runs.items()
            if run.process is not None
        ]
        state = state_of(pids[culprit]) if culprit in pids else "gone"
        try:
            await asyncio.to_thread(show_stacks, targets, why)
        except OSError as error:  # a full disk, for instance
            log.warning("the stacks could not be written: %s", error)
        return Alarm(culprit, ExitCause.HANG, f"{why}; its process was {state}")


class StragglerWatch:
    """Say once of a replica that it is slower than its siblings; never ends anything."""

    def __init__(self) -> None:
        self._decision = Stragglers()
        self._next_look = 0.0

    def look(self, runs: Mapping[int, ReplicaRun]) -> None:
        """Compare the replicas that run now, every few seconds; one alone is not even looked at."""
        alive = {number: run for number, run in runs.items() if not run.has_ended}
        if len(alive) < 2 or time.monotonic() < self._next_look:  # noqa: PLR2004 (nobody to compare with)
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        steps = _read_each(alive, lambda run: results.last_step(run.folder))
        for number, text in self._decision.look(steps, time.monotonic()).items():
            log.warning("%s", text)
            say(alive[number].folder / results.OUTPUT_FILE, text)
