"""TensorFlow-1 programs as written: names of before 1.0, towers, and clusters that share variables."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.states import AttemptState
from airflow_tf.runtime.strategies import cluster_strategy
from airflow_tf.runtime.strategies.v1_cluster import device_filters
from airflow_tf.runtime.v1 import RENAMED
from tests.strategies.programs import program, slowed
from tests.supervisor.harness import Gang, kill

CLUSTER: dict[str, Any] = {"strategy": "v1_cluster", "roles": {"chief": 1, "worker": 1, "ps": 1}, "api": "v1"}
TOTAL = [[176, 188, 192], [300, 340, 360], [300, 340, 360]]
STEP = "        _, found, number = session.run([train, weights, step])"

OLD_NAMES = """
import sys
import tensorflow as tf
from tensorflow import mul
import tensorflow.compat.v1 as named_v1
import tensorflow.python.framework.ops as ops
import keras
assert not tf.executing_eagerly() and named_v1.Session and ops.Graph and mul
for name in NAMES:
    part = tf
    for piece in name.split("."):
        part = getattr(part, piece)
    assert callable(part), name
packed = tf.pack([tf.constant(1), tf.constant(2)])
print("packed", tf.Session().run(tf.pack([packed, packed])).tolist(), flush=True)
"""

QUEUE = """
import glob, os
import tensorflow as tf
names = sorted(glob.glob(os.environ["AIRFLOW_TF_INPUT_TRAIN"] + "/*.csv"))
queue = tf.train.string_input_producer(names)
_, line = tf.TextLineReader(skip_header_lines=1).read(queue)
columns = tf.decode_csv(line, record_defaults=[[0], [0], [0], [0], [0]])
features, label = tf.pack(columns[:4]), columns[4]
with tf.Session() as session:
    coordinator = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(coord=coordinator)
    right = 0
    for _ in range(1200):
        example, answer = session.run([features, label])
        right += int(example.sum() == answer)
    coordinator.request_stop()
    coordinator.join(threads)
print("right", right, flush=True)
"""

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("no_processes_left")]


def test_old_names_work_and_each_is_listed_once(make_gang: Callable[..., Gang]) -> None:
    watch = make_gang(start_method="zygote").start(OLD_NAMES.replace("NAMES", repr(sorted(RENAMED))), api="v1")
    assert watch.end(120).state is AttemptState.SUCCEEDED, watch.lines
    output = "".join(watch.lines)
    assert "packed [[1, 2], [1, 2]]" in output
    assert [output.count(f"tf.{name} was removed") for name in RENAMED] == [1] * len(RENAMED)


def test_towers_add_up_and_train_one_model(make_gang: Callable[..., Gang]) -> None:
    watch = make_gang(start_method="zygote").start(
        program("towers/train.py"),
        strategy="towers",
        api="v1",
        environment={"TOWERS": "/cpu:0,/cpu:1"},
        session_config={"device_count": {"CPU": 2}},
        require_checkpoint=True,
    )
    assert watch.end(120).state is AttemptState.SUCCEEDED, watch.lines
    assert json.loads(watch.line("total ")) == TOTAL
    assert json.loads(watch.line("weights ")) == pytest.approx([1, 2, 3, 4], abs=0.1)


def test_the_queue_runner_program_reads_1200_examples(make_gang: Callable[..., Gang], tmp_path: Any) -> None:
    folder = tmp_path / "train"
    folder.mkdir()
    for part in range(2):
        rows = [f"{n},{n + part},{2 * n},{3},{n + n + part + 2 * n + 3}\n" for n in range(50)]
        (folder / f"part-{part}.csv").write_text("a,b,c,d,label\n" + "".join(rows))
    watch = make_gang(start_method="zygote").start(QUEUE, api="v1", inputs={"train": str(folder)})
    assert watch.end(120).state is AttemptState.SUCCEEDED, watch.lines
    assert watch.line("right ") == "1200"


@pytest.mark.parametrize("sync", [False, True], ids=["asynchronous", "SyncReplicas"])
def test_a_v1_cluster_trains_one_model_and_ends(make_gang: Callable[..., Gang], sync: bool) -> None:
    gang = make_gang(count=3, start_method="zygote")
    environment = {"STEPS": "200"} | ({"SYNC_REPLICAS": "1"} if sync else {})
    text = slowed(program("v1_cluster/train.py"), "        mine += 1", 0.01)
    plan = CLUSTER | {"success": "all", "kill_grace_seconds": 0.5, "session_config": {"log_device_placement": True}}
    watches = [gang.start(text, replica=number, environment=environment, **plan) for number in range(3)]
    assert {watch.end(120).state for watch in watches} == {AttemptState.SUCCEEDED}
    shares = [watch.line("result ").split(maxsplit=4) for watch in watches[:2]]
    assert all(int(mine) > 5 and int(number) >= 190 for _, _, mine, number, _ in shares), shares
    assert all(json.loads(found) == pytest.approx([1, 2, 3, 4], abs=0.2) for *_, found in shares)
    report = json.loads((gang.folder / "replica-0" / "generation-1" / "attempt-1" / "placement.json").read_text())
    where = {row["name"]: row["device"] for row in report["operations"]}
    assert where["weights"].startswith("/job:ps/")
    assert any(move.startswith("/job:chief/") and "-> /job:ps/" in move for move in report["transfers"]), report
    if not sync:
        assert sum(int(mine) for _, _, mine, _, _ in shares) == pytest.approx(200, abs=5), "steps of one counter"


def test_a_killed_chief_restarts_the_cluster_from_its_checkpoint(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(count=3, start_method="zygote")
    text = slowed(program("v1_cluster/train.py"), "        mine += 1").replace(
        f"{STEP}\n", f"{STEP}\n        if mine == 0 or number > 120: print('at', int(number), flush=True)\n"
    )
    plan = CLUSTER | {"restarts": 1, "kill_grace_seconds": 0.5}
    watches = [gang.start(text, replica=number, environment={"STEPS": "250"}, **plan) for number in range(3)]
    watches[0].line("at 12")
    kill(int(watches[0].line("pid ")), signal.SIGKILL)
    assert {watch.end(120).state for watch in watches} == {AttemptState.SUCCEEDED}
    lines = [line for chunk in watches[0].lines for line in chunk.splitlines()]
    again = lines[[number for number, line in enumerate(lines) if line.startswith("pid ")][1] :]
    assert int(next(line for line in again if line.startswith("at ")).split()[1]) >= 100


@pytest.mark.parametrize(
    ("role", "index", "filters"),
    [
        ("ps", 1, []),
        ("chief", 0, ["/job:ps", "/job:chief/task:0"]),
        ("worker", 2, ["/job:ps", "/job:worker/task:2"]),
    ],
)
def test_device_filters_of_a_role(role: str, index: int, filters: list[str]) -> None:
    assert device_filters({"cluster": {"ps": ["a:1"]}, "task": {"type": role, "index": index}}) == filters


def test_a_cluster_with_other_names_is_taken_and_not_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    named: dict[str, Any] = {"cluster": {"server": ["a:1"], "trainer": {"0": "a:2", "2": "b:1"}}}
    named["task"] = {"type": "trainer", "index": 2}
    assert device_filters(named) == []
    monkeypatch.setenv("TF_CONFIG", json.dumps(named))
    with pytest.raises(DeclarationError, match="unknown role"):
        cluster_strategy()
    monkeypatch.setenv("AIRFLOW_TF_STRATEGY", "v1_cluster")
    assert cluster_strategy() == "v1_cluster"
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"evaluator": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}')
    for strategy in ("v1_cluster", "sync", "async"):
        monkeypatch.setenv("AIRFLOW_TF_STRATEGY", strategy)
        assert cluster_strategy() == ""
