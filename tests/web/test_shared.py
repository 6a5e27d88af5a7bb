"""One look for all who ask: how long it serves, who waits for it, and what becomes of a failure."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_tf.web.shared import Shared


class Look:
    """Makes 1, 2, 3 …, each in ``duration_seconds`` of a clock of its own, and when it is let."""

    def __init__(self, duration_seconds=0.0):
        self.duration_seconds = duration_seconds
        self.seconds = 0.0
        self.count = 0
        self.begun, self.let = threading.Event(), threading.Event()
        self.let.set()
        self.error: Exception | None = None

    def __call__(self):
        self.begun.set()
        assert self.let.wait(60)
        self.seconds += self.duration_seconds
        self.count += 1
        if self.error is not None:
            raise self.error
        return self.count

    def now(self):
        return self.seconds


@pytest.fixture
def pool():
    with ThreadPoolExecutor() as found:
        yield found


def test_a_value_serves_for_its_time_and_is_then_made_anew():
    look = Look()
    shared = Shared(look, 2.0, look.now)
    assert [shared(), shared()] == [1, 1]
    look.seconds += 2.0
    assert shared() == 2


def test_a_look_that_takes_longer_than_its_time_serves_several_times_as_long():
    look = Look(duration_seconds=10.0)
    shared = Shared(look, 2.0, look.now)
    assert shared() == 1
    look.seconds += 39.0
    assert shared() == 1
    look.seconds += 1.0
    assert shared() == 2


def test_all_who_wait_for_the_first_look_get_that_one(pool):
    look = Look(duration_seconds=10.0)
    look.let.clear()
    shared = Shared(look, 2.0, look.now)
    answers = [pool.submit(shared) for _ in range(4)]
    assert look.begun.wait(60)
    look.let.set()
    assert [answer.result(60) for answer in answers] == [1] * 4


def test_nobody_waits_for_a_later_look(pool):
    look = Look()
    shared = Shared(look, 2.0, look.now)
    assert shared() == 1
    look.seconds += 2.0
    look.begun.clear()
    look.let.clear()
    looking = pool.submit(shared)
    assert look.begun.wait(60)
    assert [pool.submit(shared).result(60) for _ in range(3)] == [1] * 3
    look.let.set()
    assert looking.result(60) == 2


def test_a_failure_is_told_to_all_and_not_tried_again_at_once():
    look = Look(duration_seconds=10.0)
    look.error = OSError("no driver")
    shared = Shared(look, 2.0, look.now)
    for _ in range(3):
        with pytest.raises(OSError, match="no driver"):
            shared()
    assert look.count == 1
    look.error = None
    look.seconds += 40.0
    assert shared() == 2
