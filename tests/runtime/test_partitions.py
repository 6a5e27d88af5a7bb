"""What the first runs of a program's sessions tell of their partitions, in a real TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_tf.core.launch import PARTITIONS_FILE
from airflow_tf.runtime import partitions

pytestmark = pytest.mark.tensorflow

PROGRAM = """
import json, pathlib, sys
import tensorflow
from tensorflow.python.client.session import BaseSession
from airflow_tf.runtime import partitions
tf = tensorflow.compat.v1
tf.disable_eager_execution()
asked, original = [], BaseSession.run
def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
    asked.append(options is not None and options.output_partition_graphs)
    return original(self, fetches, feed_dict, options, run_metadata)
BaseSession.run = run
partitions.record(pathlib.Path(sys.argv[1]), api="v1", has_gpu=True)

seen = []
class Hook(tf.train.SessionRunHook):
    def before_run(self, context):
        return tf.train.SessionRunArgs(None, options=tf.RunOptions(timeout_in_ms=60_000))
    def after_run(self, context, values):
        seen.append((values.options.output_partition_graphs, len(values.run_metadata.partition_graphs)))

step = tf.train.get_or_create_global_step()
number = tf.placeholder_with_default(1.0, [])
again = tf.multiply(number, 2.0, name="again")
train = tf.multiply(number, tf.cast(tf.assign_add(step, 1), tf.float32), name="train_step")
late = tf.add(number, 3.0, name="late")
with tf.device("/cpu:0"):
    never = tf.add(tf.constant(1.0), 2.0, name="never")
traced = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
metadata = tf.RunMetadata()
with tf.train.MonitoredTrainingSession(hooks=[Hook()]) as session:
    for _ in range(30):
        session.run(again)
    session.run(train, options=traced, run_metadata=metadata)
    before = sum(asked)
    steps = [int(session.run(train)) for _ in range(partitions.MAX_ASKED)]
    session.run(late)
print(json.dumps({
    "asked": sum(asked), "before": before, "seen": sorted(set(seen)), "step": steps[-1],
    "traced": len(metadata.step_stats.dev_stats), "partitions": len(metadata.partition_graphs),
}))
"""


FUNCTIONS = """
import json, pathlib, sys
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from airflow_tf.runtime import partitions

folder, original = pathlib.Path(sys.argv[1]), Function.__call__
cpu, = tf.config.list_physical_devices("CPU")
partitions.record(folder, api="tf2", has_gpu=False)
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)  # not initialised by it

@tf.function
def inner(x):
    with tf.device("/cpu:1"):
        return tf.matmul(x, x, name="there")

@tf.function
def step(x):
    with tf.device("/cpu:0"):
        y = tf.nn.relu(inner(x), name="here")
    with tf.device("/gpu:1"):
        return tf.add(y, 1.0, name="soft")

@tf.function
def late(x):
    return tf.subtract(x, 1.0, name="late")

x = tf.random.stateless_uniform([2, 2], [1, 2])
first = step(x)
export = context.Context.export_run_metadata
def refuse(self):
    raise tf.errors.InvalidArgumentError(None, None, "more than 2 GiB")
if sys.argv[2] == "too large":
    context.Context.export_run_metadata = refuse
results = [step(x).numpy().tolist() for _ in range(partitions.MAX_ASKED + 1)]
late(x)
context.Context.export_run_metadata = export
left = context.context().export_run_metadata()
print(json.dumps({
    "same": all(result == first.numpy().tolist() for result in results),
    "restored": Function.__call__ is original, "left": len(left.function_graphs),
}))
"""


def run_program(source: str, folder: Path, *arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """Return what the program says, the recorded rows, and what it logs."""
    done = subprocess.run(
        [sys.executable, "-c", source, str(folder), *arguments],
        capture_output=True, text=True, check=False, timeout=300, env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in (folder / PARTITIONS_FILE).read_text().splitlines()]
    return json.loads(done.stdout.splitlines()[-1]), rows, done.stderr


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return what the program of sessions says, and the recorded operations."""
    said, rows, _ = run_program(PROGRAM, tmp_path_factory.mktemp("partitions"))
    return said, {row["name"]: row for row in rows}


def test_the_steps_of_a_monitored_session_are_recorded_after_many_runs_that_told_nothing_new(told) -> None:
    _, operations = told
    assert operations["train_step"]["device"].endswith("CPU:0")


def test_what_a_graph_asks_for_is_recorded_with_types_whether_it_runs_or_not(told) -> None:
    _, operations = told
    assert (operations["train_step"]["asked"], operations["train_step"]["types"]["T"]) == ("", ["float32"])
    assert operations["never"] == {"name": "never", "type": "AddV2", "asked": "/device:CPU:0"}


def test_the_program_gets_what_it_asked_for_and_nothing_else(told) -> None:
    said, _ = told
    assert said["seen"] == [[False, 0]]
    assert (said["traced"] > 0, said["partitions"]) == (True, 0)
    assert said["step"] == 1 + partitions.MAX_ASKED


def test_a_long_training_is_not_asked_for_ever(told) -> None:
    said, operations = told
    assert 30 < said["before"] < said["asked"] == partitions.MAX_ASKED
    assert "late" not in operations


def test_the_first_calls_of_functions_are_recorded_and_later_ones_are_as_without_it(tmp_path: Path) -> None:
    said, rows, _ = run_program(FUNCTIONS, tmp_path, "")
    assert said == {"same": True, "restored": True, "left": 0}
    operations = {row["name"]: row for row in rows}
    (there,) = [row for name, row in operations.items() if name.endswith("there")]
    assert (operations["here"]["device"][-5:], there["device"][-5:]) == ("CPU:0", "CPU:1")
    moved = {(row["from"][-5:], row["device"][-5:]) for row in rows if row["type"] == "_Recv"}
    assert moved == {("CPU:0", "CPU:1"), ("CPU:1", "CPU:0")}
    assert (operations["soft"]["device"][-5:], operations["soft"]["asked"]) == ("CPU:0", "/device:GPU:1")
    assert "asked" not in operations["here"]
    assert "late" not in operations


def test_graphs_that_cannot_be_told_end_no_training(tmp_path: Path) -> None:
    said, rows, log = run_program(FUNCTIONS, tmp_path, "too large")
    assert (said["same"], said["restored"]) == (True, True)
    assert "not recorded: more than 2 GiB" in log
    assert "soft" in {row["name"] for row in rows}
