"""The mover's side of the pipe: events as JSON lines, and retries that say so."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_tf.core.errors import AirflowTfError, CancelledError

if TYPE_CHECKING:
    import tenacity

T = TypeVar("T")

_EVERY_SECONDS = 0.25
_RETRY_SHARE = 0.6  # of the parent's deadline: the mover gives up first and can say why


class Reporter:
    """Writes events to the parent; counts bytes and files from several threads.

    Only ``progress`` events postpone the parent's deadline, and only what moved produces one.
    """

    def __init__(self, descriptor: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._descriptor, self._clock = descriptor, clock
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._last = -_EVERY_SECONDS
        self._counts = {"files": 0, "bytes": 0, "total_files": 0, "total_bytes": 0}

    def send(self, event: str, **values: Any) -> None:
        """Write one event."""
        line = json.dumps({"event": event} | values).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]

    def expect(self, files: int, total_bytes: int) -> None:
        """Say how much there is to do, counted from here on."""
        self._counts = {"files": 0, "bytes": 0, "total_files": files, "total_bytes": total_bytes}

    def note(self, text: str) -> None:
        """Hand a line to the task's log; this is no progress."""
        self.send("note", text=text)

    def cancel(self) -> None:
        """Make every later :meth:`tick` raise: one file has failed, so the others need not go on."""
        self._cancelled.set()

    def tick(self, moved_bytes: int = 0, files: int = 0) -> None:
        """Count what moved, and tell the parent at most every quarter of a second."""
        if self._cancelled.is_set():
            raise CancelledError("stopped, because another file failed")
        with self._lock:
            self._counts["bytes"] += moved_bytes
            self._counts["files"] += files
            now = self._clock()
            if now - self._last < _EVERY_SECONDS:
                return
            self._last = now
            counts = dict(self._counts)
        self.send("progress", **counts)


class Patience:
    """Repeats what fails with a retryable error, with growing random pauses, until it is stuck for ``seconds``."""

    def __init__(
        self, seconds: float, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._note, self._clock = seconds, note, clock

    def __call__(self, action: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
        """Return ``action``'s result, or raise its last error.

        The time counts from the first failure, and anew whenever ``progress`` has changed.
        """
        try:
            return action()
        except AirflowTfError as error:
            if not error.retryable:
                raise
            failed = [error]
        import tenacity  # noqa: PLC0415 -- needed after a failure only, and it takes a tenth of the mover's start

        def again() -> T:
            if failed:
                raise failed.pop()
            return action()

        stuck_at, stuck_since = -1, 0.0

        def left_seconds() -> float:
            nonlocal stuck_at, stuck_since
            if (now_at := progress()) != stuck_at:
                stuck_at, stuck_since = now_at, self._clock()
            return self._seconds - (self._clock() - stuck_since)

        pause = tenacity.wait_random_exponential(multiplier=0.5, max=8)

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, AirflowTfError) and error.retryable),
            wait=lambda state: min(pause(state), max(0.0, left_seconds())),  # who waits must hear the reason in time
            stop=lambda _state: left_seconds() <= 0,
            before_sleep=self._tell,
            reraise=True,
        )
        return retrying(again)

    def _tell(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        pause = state.next_action.sleep if state.next_action else 0.0
        self._note(f"{error} (trying again in {pause:.1f} s)")


def patience_of(job: dict[str, Any], reporter: Reporter) -> Patience:
    """Return the patience of a job of the mover."""
    return Patience(job["stall_seconds"] * _RETRY_SHARE, reporter.note)
