"""A chief schedules steps on workers: what ends with it, what it survives, and from where it begins again."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from airflow_tf.core.states import AttemptState, ExitCause
from tests.strategies.programs import program, slowed
from tests.supervisor.harness import Gang, Watch, kill, wait_for

PROGRAM = slowed(program("parameter_server/train.py"), "    coordinator.join()", 0.1)
ASYNC: dict[str, Any] = {
    "strategy": "async",
    "roles": {"chief": 1, "worker": 2, "ps": 1},
    "success": "chief",
    "restarts": 1,
    "kill_grace_seconds": 0.5,
}

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("no_processes_left")]


def start(make_gang: Callable[..., Gang], **environment: str) -> list[Watch]:
    gang = make_gang(count=4, start_method="zygote")
    return [gang.start(PROGRAM, replica=number, environment=environment, **ASYNC) for number in range(4)]


def steps(chief: Watch) -> int:
    return "".join(chief.lines).count("/job:ps/")


def steps_without_errors(chief: Watch) -> int:
    """Return how often the chief has told its step since it last failed to reach a worker."""
    return "".join(chief.lines).rpartition("Connection refused")[2].count("/job:ps/")


def first_steps(chief: Watch) -> list[int]:
    lines = [line for chunk in chief.lines for line in chunk.splitlines()]
    return [int(line.split()[2]) for line in lines if line.startswith("first step ")]


def test_a_killed_worker_rejoins_and_the_chief_finishes_with_it_alone(make_gang: Callable[..., Gang]) -> None:
    chief, first, second, server = start(make_gang, ROUNDS="120")
    assert "/job:ps/" in chief.line("step 60 "), "the server holds the variables"
    kill(int(first.line("pid ")), signal.SIGKILL)
    wait_for(lambda: "".join(first.lines).count("worker 0 serves the chief") == 2, "the worker serves again")
    seen = steps(chief)
    # While a worker is being taken back, the loss of another one may leave TensorFlow's chief waiting for ever.
    wait_for(lambda: min(steps(chief) - seen, steps_without_errors(chief)) > 3, "the chief has taken it back")
    kill(int(second.line("pid ")), signal.SIGKILL)  # beyond the budget: the gang goes on without it
    assert chief.end(180).state is AttemptState.SUCCEEDED
    assert {watch.end().state for watch in (first, server)} == {AttemptState.SUCCEEDED}
    assert second.end().cause is ExitCause.KILLED
    step, weights = chief.line("result ").split(maxsplit=1)
    assert int(step) >= 400
    assert json.loads(weights) == pytest.approx([1, 2, 3, 4], abs=0.05)
    assert first_steps(chief) == [0], "it was not begun again"


def test_a_killed_server_begins_again_from_the_checkpoint(make_gang: Callable[..., Gang]) -> None:
    chief, *_, server = start(make_gang)
    chief.line("step 60 ")
    kill(int(server.line("pid ")), signal.SIGKILL)
    assert chief.end(180).state is AttemptState.SUCCEEDED
    first, second = first_steps(chief)
    assert first == 0
    assert second >= 60
