"""Every strategy with real processes of TensorFlow: a replica that comes late, is killed, or stands still.

The other cells of the table are tests beside this one:

| strategy | fresh start | killed | stopped by SIGSTOP | late | resume |
|---|---|---|---|---|---|
| `independent` | here | here | here | here | here |
| `sync` | `test_sync` | `test_sync` | here | here | `test_sync`, here |
| `async` | `test_async` | `test_async` (worker, server) | here | here | `test_async`, here |
| `v1_cluster`, asynchronous | `test_v1` | `test_v1` (chief), here (worker rejoins) | here | here | `test_v1`, here |
| `v1_cluster`, SyncReplicas | `test_v1` | here (worker rejoins) | here | here | here |
| `towers`, Mirrored and v1 | `test_sync`, `test_v1` | here | here | has no peers | here |

A gang of them all begins again from its first replica's checkpoint; a replica of `independent` from its own.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from airflow_tf.core.states import AttemptState
from tests.strategies.programs import late, program, slowed
from tests.supervisor.harness import Gang, Watch, kill, wait_for

END_SECONDS = 240.0
STILL: dict[str, Any] = {"progress_timeout_seconds": 8.0, "restarts": 4, "kill_grace_seconds": 0.5}
"""Longest time without progress. A busy machine may be taken for a hang: that only costs a restart."""

ALONE = """
import os as _os
print('pid', _os.getpid(), flush=True)
import time
import tensorflow as tf
from airflow_tf import runtime
run = runtime.context()
weights, step = tf.Variable(tf.zeros(4)), tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(weights=weights, step=step)
manager = tf.train.CheckpointManager(checkpoint, str(run.checkpoint_dir), max_to_keep=2)
if run.resume_from:
    checkpoint.restore(run.resume_from).assert_consumed()
print("first step", int(step.numpy()), flush=True)
x = tf.random.normal((256, 4))
y = tf.linalg.matvec(x, [1.0, 2.0, 3.0, 4.0])
while int(step.numpy()) < 100:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    step.assign_add(1)
    if int(step.numpy()) % 10 == 0:
        manager.save(checkpoint_number=int(step.numpy()))
        run.report(int(step.numpy()), loss=float(loss))
        print("step", int(step.numpy()), flush=True)
    time.sleep(0.02)
print("result", weights.numpy().tolist(), flush=True)
"""
V1_STEP = "        _, found, number = session.run([train, weights, step])"

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("no_processes_left")]


def all_of(watch: Watch, prefix: str) -> list[str]:
    lines = [line for chunk in watch.lines for line in chunk.splitlines()]
    return [line[len(prefix) :] for line in lines if line.startswith(prefix)]


def stop(watch: Watch) -> None:
    kill(int(all_of(watch, "pid ")[-1]), signal.SIGSTOP)


def assert_told(watches: Sequence[Watch], name: str) -> None:
    """Somebody was told that this replica stood still, and in which state it was."""
    infos = [info for watch in watches for info in watch.infos]
    assert any("no progress for" in info and name in info and "T (stopped)" in info for info in infos), infos


def test_independent_replicas_are_late_killed_and_stopped_without_touching_each_other(
    make_gang: Callable[..., Gang],
) -> None:
    gang = make_gang(count=3, start_method="zygote")
    killed, stopped, tardy = [
        gang.start(late(ALONE) if number == 2 else ALONE, replica=number, **STILL) for number in range(3)
    ]
    killed.line("step 20")
    kill(int(killed.line("pid ")), signal.SIGKILL)
    stopped.line("step 20")
    stop(stopped)
    assert {watch.end(END_SECONDS).state for watch in (killed, stopped, tardy)} == {AttemptState.SUCCEEDED}
    for watch in (killed, stopped, tardy):
        assert json.loads(watch.line("result ")) == pytest.approx([1, 2, 3, 4], abs=0.05)
    assert [int(first) >= 20 for first in all_of(killed, "first step ")][:2] == [False, True]
    assert [int(first) >= 20 for first in all_of(stopped, "first step ")][:2] == [False, True]
    assert all_of(tardy, "first step ") == ["0"]
    assert_told([stopped], "")
    assert not any("T (stopped)" in info for info in killed.infos + tardy.infos)


def test_workers_in_sync_wait_for_a_late_one_and_begin_again_when_one_stands_still(
    make_gang: Callable[..., Gang],
) -> None:
    gang = make_gang(count=2, start_method="zygote")
    text = slowed(late(program("sync/train.py"), "worker", 1), "    loss = train(next(iterator))")
    before_the_heartbeat = {"progress_timeout_seconds": 6.0}  # after 10 s its peer would end with an error
    plan = STILL | before_the_heartbeat | {"strategy": "sync", "roles": {"worker": 2}}
    watches = [gang.start(text, replica=number, **plan) for number in range(2)]
    watches[0].line("step 40 ")
    assert all_of(watches[1], "comes late"), "and took part in these steps"
    stop(watches[1])
    assert {watch.end(END_SECONDS).state for watch in watches} == {AttemptState.SUCCEEDED}
    assert_told(watches, "worker 1")
    assert watches[0].line("result ") == watches[1].line("result ")
    assert [int(first) >= 40 for first in all_of(watches[0], "first step ")][:2] == [False, True]


def test_a_chief_waits_for_a_late_worker_and_begins_again_when_one_stands_still(
    make_gang: Callable[..., Gang],
) -> None:
    gang = make_gang(count=4, start_method="zygote")
    text = slowed(late(program("parameter_server/train.py"), "worker", 1), "    coordinator.join()", 0.1)
    plan = STILL | {"strategy": "async", "roles": {"chief": 1, "worker": 2, "ps": 1}}
    chief, *others = [gang.start(text, replica=number, **plan) for number in range(4)]
    chief.line("step 60 ")
    assert all_of(others[1], "worker 1 serves"), "it took part in these steps"
    stop(others[0])
    assert {watch.end(END_SECONDS).state for watch in (chief, *others)} == {AttemptState.SUCCEEDED}
    assert_told([chief, *others], "worker 0")
    assert json.loads(chief.line("result ").split(maxsplit=1)[1]) == pytest.approx([1, 2, 3, 4], abs=0.05)
    assert [int(first) >= 60 for first in all_of(chief, "first step ")][:2] == [False, True]


@pytest.mark.parametrize("sync", [False, True], ids=["asynchronous", "SyncReplicas"])
def test_a_v1_cluster_takes_a_late_and_a_killed_worker_and_begins_again_when_one_stands_still(
    make_gang: Callable[..., Gang], sync: bool
) -> None:
    gang = make_gang(count=3, start_method="zygote")
    environment = {"STEPS": "200"} | ({"SYNC_REPLICAS": "1"} if sync else {})
    text = slowed(late(program("v1_cluster/train.py"), "worker", 0), "        mine += 1", 0.04).replace(
        f"{V1_STEP}\n", f"{V1_STEP}\n        if mine % 10 == 0: print('at', int(number), flush=True)\n"
    )
    plan = STILL | {"strategy": "v1_cluster", "roles": {"chief": 1, "worker": 1, "ps": 1}, "api": "v1"}
    watches = [gang.start(text, replica=number, environment=environment, **plan) for number in range(3)]
    chief, worker, _ = watches
    worker.line("at ")
    kill(int(worker.line("pid ")), signal.SIGKILL)
    wait_for(lambda: len(all_of(worker, "pid ")) > 1, "the worker is started again")
    seen = len(all_of(worker, "at "))
    wait_for(lambda: len(all_of(worker, "at ")) > seen, "it takes steps again")
    assert len(all_of(chief, "pid ")) == 1, "the chief went on meanwhile"
    stop(worker)
    assert {watch.end(END_SECONDS).state for watch in watches} == {AttemptState.SUCCEEDED}
    assert_told(watches, "worker 0")
    assert json.loads(chief.line("result ").split(maxsplit=4)[-1]) == pytest.approx([1, 2, 3, 4], abs=0.2)


TOWERS: dict[str, tuple[str, str, int]] = {
    "towers": ("        number = session.run(step)", "first step ", 25),
    "mirrored": ("    manager.save(checkpoint_number=epoch + 1)", "first epoch ", 2),
}
"""Name -> line that is a step, how a beginning is told, after how many steps something is saved."""


@pytest.mark.parametrize("name", TOWERS)
def test_towers_begin_again_from_their_checkpoint_when_killed_and_when_they_stand_still(
    make_gang: Callable[..., Gang], name: str
) -> None:
    line, begins, enough = TOWERS[name]
    text = slowed(program(f"{name}/train.py"), line, 1.5 / enough)
    watch = make_gang(start_method="zygote").start(
        text.replace(f"{line}; ", f"{line}; print('took a step', flush=True); "),
        strategy="towers",
        api="v1" if name == "towers" else "auto",
        environment={"STEPS": "80", "EPOCHS": "7", "TOWERS": "/cpu:0,/cpu:1"},
        session_config={"device_count": {"CPU": 2}},
        require_checkpoint=True,
        **STILL,
    )
    for count, number in enumerate((signal.SIGKILL, signal.SIGSTOP), 1):
        wait_for(lambda count=count: len(all_of(watch, begins)) == count, f"beginning {count}")
        seen = len(all_of(watch, "took a step"))
        wait_for(lambda seen=seen: len(all_of(watch, "took a step")) >= seen + enough, "it gets on")
        kill(int(all_of(watch, "pid ")[-1]), number)
    assert watch.end(END_SECONDS).state is AttemptState.SUCCEEDED
    assert_told([watch], "")
    beginnings = [int(number) for number in all_of(watch, begins)]
    assert beginnings[0] == 0
    assert beginnings == sorted(set(beginnings)), "each from a later checkpoint"
