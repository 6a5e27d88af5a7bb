"""A stop leaves time for one more checkpoint, and a program that was stopped never looks finished."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_tf.core.checkpoint import latest_complete

pytestmark = pytest.mark.usefixtures("no_processes_left")

LOOP = """
import os, signal, sys
from airflow_tf import runtime

runtime.on_stop(lambda: print("saved second", flush=True))
def save():
    os.kill(os.getpid(), signal.SIGTERM)  # an impatient second one
    print("saved first", flush=True)
runtime.on_stop(save)
for step in range(10**9):
    if step == 5:
        os.kill(os.getpid(), signal.SIGTERM)
"""

POLLED = """
import os, signal, sys
from airflow_tf import runtime

assert not runtime.stop_requested()
os.kill(os.getpid(), signal.SIGTERM)
while not runtime.stop_requested():
    pass
print("saved", flush=True)
sys.exit(runtime.STOPPED)
"""

FRAMEWORKS = """
import json, os, signal, sys
import numpy as np, tensorflow as tf
from airflow_tf import runtime
from airflow_tf.runtime import stopping

folder, codes = sys.argv[1], {}
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), folder + "/keras", max_to_keep=1)
signal_at_3 = tf.keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda batch, logs: batch == 3 and os.kill(os.getpid(), signal.SIGTERM)
)
saving = runtime.SaveOnStop(lambda: manager.save(checkpoint_number=int(model.optimizer.iterations)))
try:
    model.fit(np.ones((64, 1)), np.ones((64, 1)), batch_size=8, callbacks=[signal_at_3, saving], verbose=0)
except SystemExit as error:
    codes["keras"] = error.code

stopping._state["requested"] = False
with tf.Graph().as_default():
    step = tf.compat.v1.train.get_or_create_global_step()
    train = tf.compat.v1.assign_add(step, 1)
    try:
        with tf.compat.v1.train.MonitoredTrainingSession(
            checkpoint_dir=folder + "/v1", save_checkpoint_steps=1000, save_checkpoint_secs=None, hooks=[runtime.StopHook()]
        ) as session:
            while not session.should_stop():
                if session.run(train) == 7:
                    os.kill(os.getpid(), signal.SIGTERM)
    except SystemExit as error:
        codes["v1"] = error.code
print(json.dumps(codes))
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=200
    )


@pytest.mark.parametrize(("program", "output"), [(LOOP, ["saved first", "saved second"]), (POLLED, ["saved"])])
def test_a_stopped_program_saves_once_and_does_not_end_with_0(program: str, output: list[str]) -> None:
    done = run(program)
    assert (done.stdout.splitlines(), done.returncode) == (output, 128 + signal.SIGTERM), done.stderr


@pytest.mark.tensorflow
def test_keras_and_v1_sessions_save_the_step_at_which_they_were_stopped(tmp_path: Path) -> None:
    done = run(FRAMEWORKS, str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"keras": 143, "v1": 143}
    assert latest_complete(tmp_path / "keras").prefix == str(tmp_path / "keras" / "ckpt-4")
    saved = latest_complete(tmp_path / "v1").prefix
    assert saved is not None
    assert int(saved.rpartition("-")[2]) >= 7
