"""The example's programs are ordinary TensorFlow programs: they run alone, resume, and save when they are stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "dags" / "flights"
HEADER = "month,day,hour,minute,distance,dep_delay,arr_delay\n"

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("no_processes_left")]


@pytest.fixture
def data(tmp_path):
    """Two months of flights whose arrival delay is the departure delay minus five minutes."""
    for name, months in (("train", (1, 2)), ("holdout", (11,))):
        (tmp_path / name).mkdir()
        for month in months:
            lines = (f"{month},1,{n % 24},{n % 60},{500 + n % 900},{n % 90 - 10},{n % 90 - 15}\n" for n in range(4000))
            (tmp_path / name / f"flights-{month:02}.csv").write_text(HEADER + "".join(lines))
    return tmp_path


def start(data, *arguments, program="train.py", **variables):
    environment = os.environ | {
        "AIRFLOW_TF_INPUT_TRAIN": str(data / "train"),
        "AIRFLOW_TF_INPUT_HOLDOUT": str(data / "holdout"),
        "AIRFLOW_TF_CHECKPOINT_DIR": str(data / "checkpoints"),
        "AIRFLOW_TF_METRICS_FILE": str(data / "metrics.jsonl"),
    }
    command = [sys.executable, str(PROGRAMS / program), *arguments]
    return subprocess.Popen(command, env=environment | variables, stdout=subprocess.PIPE, text=True)


def finish(process):
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


def checkpoints(data):
    return sorted(path.stem for path in (data / "checkpoints").glob("*.index"))


def test_a_stopped_training_saves_and_the_next_one_goes_on(data):
    process = start(data, "--epochs=1000000", "--steps-per-report=1")
    deadline = time.monotonic() + 90
    while not (data / "metrics.jsonl").exists():
        assert time.monotonic() < deadline, "no training step was reported"
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    stopped = re.search(r"stopped at step (\d+), saved (\S+)", output)
    assert stopped, output

    prefix = stopped.group(2)
    output = finish(start(data, "--epochs=1", AIRFLOW_TF_RESUME_FROM=prefix))
    assert f"resumed from {prefix} at step {stopped.group(1)}" in output


def test_resuming_after_the_last_epoch_still_leaves_a_checkpoint(data):
    finish(start(data, "--epochs=1"))
    assert checkpoints(data) == ["ckpt-1"]
    prefix = str(data / "checkpoints" / "ckpt-1")
    second = str(data / "second")
    finish(start(data, "--epochs=1", AIRFLOW_TF_RESUME_FROM=prefix, AIRFLOW_TF_CHECKPOINT_DIR=second))
    assert list((data / "second").glob("*.index"))


def test_evaluation_compares_candidates_with_the_mean_of_the_training_data(data):
    finish(start(data, "--epochs=40", "--steps-per-report=1", "--learning-rate=0.0003"))
    steps = [json.loads(line)["step"] for line in (data / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 40 * 8 + 1))  # 8000 flights are 8 batches

    result = data / "evaluation.json"
    candidates = json.dumps({"replica-0": str(data / "checkpoints" / checkpoints(data)[-1])})
    output = finish(
        start(data, program="evaluate.py", AIRFLOW_TF_CANDIDATES=candidates, AIRFLOW_TF_EVALUATION_FILE=str(result))
    )
    found = json.loads(result.read_text())
    assert found["baselines"]["mean-predictor"]["mae"] == pytest.approx(22.5, abs=0.2)
    assert found["candidates"]["replica-0"]["mae"] < 10
    assert re.search(r"^mean-predictor +22\.\d{3}$", output, re.MULTILINE)
