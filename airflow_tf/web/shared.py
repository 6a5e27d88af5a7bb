"""What is costly to find out, found out once for all who ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

_TIMES_ITS_DURATION = 4
"""A value serves at least so many times as long as it took to make."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Made(Generic[Value]):
    values: tuple[Value, ...]
    error: Exception | None
    until: float

    def get(self) -> Value:
        if self.error is not None:
            raise self.error.with_traceback(None)  # else it grew with everyone who asks
        return self.values[0]


class Shared(Generic[Value]):
    """A value made once for all who ask within some seconds: a look at devices starts a process, and may hang.

    One at a time makes it; meanwhile the others get the value before, so that only the very first look is waited for.
    A failure serves as long as a value.
    """

    def __init__(self, make: Callable[[], Value], seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._make, self._seconds, self._now = make, seconds, now
        self._lock = threading.Lock()
        self._made: _Made[Value] | None = None

    def __call__(self) -> Value:
        """Return the value, made anew where it is too old.

        :raises Exception: whatever the last try to make it raised.
        """
        if self._is_due() and self._lock.acquire(blocking=self._made is None):
            try:
                if self._is_due():  # else it was just made by whom this thread waited for
                    self._made = self._try()
            finally:
                self._lock.release()
        assert self._made is not None
        return self._made.get()

    def _is_due(self) -> bool:
        return self._made is None or self._now() >= self._made.until

    def _try(self) -> _Made[Value]:
        begun = self._now()
        values: tuple[Value, ...] = ()
        error = None
        try:
            values = (self._make(),)
        except Exception as caught:  # noqa: BLE001 (raised to everyone who asks)
            error = caught
        ended = self._now()
        return _Made(values, error, ended + max(self._seconds, _TIMES_ITS_DURATION * (ended - begun)))
