"""Workers in sync train one model, and begin again together from the last checkpoint."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from airflow_tf.core.states import AttemptState
from tests.strategies.programs import program, slowed
from tests.supervisor.harness import Gang, kill

PROGRAM = program("sync/train.py")
SYNC: dict[str, Any] = {"strategy": "sync", "roles": {"worker": 2, "evaluator": 1}, "restarts": 1}

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("no_processes_left")]


def test_a_killed_worker_restarts_the_gang_from_the_checkpoint_and_an_evaluator_sees_the_last_one(
    make_gang: Callable[..., Gang],
) -> None:
    gang = make_gang(count=3, start_method="zygote")
    watches = [
        gang.start(slowed(PROGRAM, "    loss = train(next(iterator))"), replica=number, **SYNC) for number in range(3)
    ]
    watches[1].line("step 40 ")
    kill(int(watches[1].line("pid ")), signal.SIGKILL)
    assert {watch.end(180).state for watch in watches} == {AttemptState.SUCCEEDED}
    results = {watch.line("result ") for watch in watches[:2]}
    assert len(results) == 1, "the same weights on both"
    replicas, examples, weights = results.pop().split(maxsplit=2)
    assert (replicas, examples) == ("2", "64"), "the batch is the sum of both parts"
    assert json.loads(weights) == pytest.approx([1, 2, 3, 4], abs=0.05)
    firsts = [line for text in watches[0].lines for line in text.splitlines() if line.startswith("first step ")]
    assert [int(line.split()[2]) >= 40 for line in firsts] == [False, True]
    seen = watches[2].end().metrics
    assert seen["step"] == 200, "the evaluator saw the last checkpoint"
    assert seen["holdout_loss"] < 0.01


def test_the_devices_of_one_process_train_one_model(make_gang: Callable[..., Gang]) -> None:
    watch = make_gang(start_method="zygote").start(
        program("mirrored/train.py"),
        strategy="towers",
        session_config={"device_count": {"CPU": 2}},
        require_checkpoint=True,
    )
    assert watch.end(120).state is AttemptState.SUCCEEDED, watch.lines
    assert watch.line("devices ") == "2 2", "a copy on each"
    replicas, weights = watch.line("result ").split(maxsplit=1)
    assert replicas == "2"
    assert json.loads(weights) == pytest.approx([1, 2, 3, 4], abs=0.05)
