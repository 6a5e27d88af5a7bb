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
SYNC: dict[str, Any] = {"strategy": "sync", "roles": {"worker": 2}, "restarts": 1, "require_checkpoint": True}

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("no_processes_left")]


def test_a_killed_worker_restarts_the_gang_from_the_checkpoint_and_both_end_with_one_model(
    make_gang: Callable[..., Gang],
) -> None:
    gang = make_gang(count=2, start_method="zygote")
    watches = [
        gang.start(slowed(PROGRAM, "    loss = train(next(iterator))"), replica=number, **SYNC) for number in range(2)
    ]
    watches[1].line("step 40 ")
    kill(int(watches[1].line("pid ")), signal.SIGKILL)
    assert {watch.end(180).state for watch in watches} == {AttemptState.SUCCEEDED}
    results = {watch.line("result ") for watch in watches}
    assert len(results) == 1, "the same weights on both"
    replicas, examples, weights = results.pop().split(maxsplit=2)
    assert (replicas, examples) == ("2", "64"), "the batch is the sum of both parts"
    assert json.loads(weights) == pytest.approx([1, 2, 3, 4], abs=0.05)
    firsts = [line for text in watches[0].lines for line in text.splitlines() if line.startswith("first step ")]
    assert [int(line.split()[2]) >= 40 for line in firsts] == [False, True]
