"""A chief schedules steps on workers: what ends with it, what it survives, and from where it begins again."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from airflow_tf.core.states import AttemptState
from tests.strategies.programs import program, slowed
from tests.supervisor.harness import Gang, Watch, kill

PROGRAM = slowed(program("parameter_server/train.py"), "    coordinator.join()", 0.1)
ASYNC: dict[str, Any] = {
    "strategy": "async",
    "roles": {"chief": 1, "worker": 2, "ps": 1},
    "success": "chief",
    "restarts": 1,
    "kill_grace_seconds": 0.5,
}

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("no_processes_left")]


def start(make_gang: Callable[..., Gang]) -> list[Watch]:
    gang = make_gang(count=4, start_method="zygote")
    return [gang.start(PROGRAM, replica=number, **ASYNC) for number in range(4)]


def first_steps(chief: Watch) -> list[int]:
    lines = [line for chunk in chief.lines for line in chunk.splitlines()]
    return [int(line.split()[2]) for line in lines if line.startswith("first step ")]


def test_the_chief_finishes_without_a_killed_worker_and_ends_the_others(make_gang: Callable[..., Gang]) -> None:
    chief, lost, *others = start(make_gang)
    assert "/job:ps/" in chief.line("step 60 "), "the server holds the variables"
    kill(int(lost.line("pid ")), signal.SIGKILL)
    assert chief.end(180).state is AttemptState.SUCCEEDED
    assert {watch.end().state for watch in others} == {AttemptState.SUCCEEDED}
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
