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
partitions.record(pathlib.Path(sys.argv[1]))

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


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the program says, and the recorded operations with their devices."""
    folder = tmp_path_factory.mktemp("partitions")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        capture_output=True, text=True, check=False, timeout=300, env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in (Path(folder) / PARTITIONS_FILE).read_text().splitlines()]
    return json.loads(done.stdout.splitlines()[-1]), {row["name"]: row["device"] for row in rows}


def test_the_steps_of_a_monitored_session_are_recorded_after_many_runs_that_told_nothing_new(told) -> None:
    _, devices = told
    assert devices["train_step"].endswith("CPU:0")


def test_the_program_gets_what_it_asked_for_and_nothing_else(told) -> None:
    said, _ = told
    assert said["seen"] == [[False, 0]]
    assert (said["traced"] > 0, said["partitions"]) == (True, 0)
    assert said["step"] == 1 + partitions.MAX_ASKED


def test_a_long_training_is_not_asked_for_ever(told) -> None:
    said, devices = told
    assert 30 < said["before"] < said["asked"] == partitions.MAX_ASKED
    assert "late" not in devices
