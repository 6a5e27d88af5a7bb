"""Declarations of sweeps: the tasks they become, and what does not fit together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airflow.sdk import TriggerRule
from airflow.serialization.serialized_objects import DagSerialization

from airflow_tf.pipeline.build import load_dag
from airflow_tf.pipeline.declaration import load_declaration
from airflow_tf.pipeline.errors import InvalidDeclarationError
from tests.pipeline.declarations import write

SWEEP = """dag_id: x
devices: {kind: cpu, timeout: 2h}
train: {entrypoint: train.py, success: {at_least: 2}}
sweep:
  grid: {lr: [0.1, 0.01], batch: [32, 64]}
  metric: loss
  stop_early: {min_steps: 100}
  parallel: 2
evaluate: {entrypoint: train.py, metric: mae}
checkpoints: {publish: 'file:///models'}
"""


def errors(folder: Path, text: str) -> str:
    with pytest.raises(InvalidDeclarationError) as caught:
        load_declaration(write(folder, text))
    return str(caught.value)


def test_a_sweep_becomes_trials_and_the_choice_of_the_best(tmp_path: Path) -> None:
    dag = load_dag(write(tmp_path, SWEEP))
    assert {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks} == {
        "wait_for_devices": ["train"],
        "train": ["best_trial"],
        "best_trial": ["evaluate"],
        "evaluate": ["publish"],
        "publish": [],
    }
    train, best = dag.get_task("train"), dag.get_task("best_trial")
    assert train.expand_input.value == {"replica": [0, 1, 2, 3]}
    given = train.partial_kwargs
    assert given["trials"] == [{"lr": lr, "batch": batch} for lr in (0.1, 0.01) for batch in (32, 64)]
    assert (given["metric"], given["mode"]) == ("loss", "min")
    assert given["stop_early"] == {"min_steps": 100, "min_trials": 3}
    assert (given["max_active_tis_per_dagrun"], given["device_timeout"]) == (2, 7200.0)
    assert train.partial_kwargs["map_index_template"] == "{{ task.trial_name }}"
    assert (best.from_task, best.trigger_rule) == ("train", TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS)
    assert {dag.get_task(name).from_task for name in ("evaluate", "publish")} == {"best_trial"}
    assert dag.get_task("wait_for_devices").hold is False


def test_the_same_sweep_gives_the_same_dag(tmp_path: Path) -> None:
    file = write(tmp_path, SWEEP)
    first, second = (json.dumps(DagSerialization.to_dict(load_dag(file)), sort_keys=True) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("grid: {lr: [0.1, 0.01], batch: [32, 64]}", "mode: min", "4:1: sweep: it needs one of 'grid' and 'trials'"),
        ("  metric: loss", "  metric: loss\n  trials: [{lr: 1}]", "4:1: sweep: it needs one of 'grid' and 'trials'"),
        ("batch: [32, 64]", "batch: []", "5:27: sweep.grid.batch: [] is wrong"),
        ("batch: [32, 64]", "batch: 32", "5:27: sweep.grid.batch: 32 is wrong"),
        ("batch: [32, 64]", "'ba tch': [32]", "sweep.grid.ba tch: 'ba tch' cannot be the name of an argument"),
        ("  metric: loss\n", "", "4:1: sweep.metric: missing"),
        ("  metric: loss", "  metrc: loss", 'sweep.metrc: unknown key. Did you mean "metric"?'),
        ("min_steps: 100", "min_trials: 4", "sweep.stop_early.min_trials: 4 is too many: a trial has 3 others"),
        ("min_steps: 100", "min_steps: 0", "7:16: sweep.stop_early.min_steps: 0 is wrong"),
        ("kind: cpu", "count: 2", "2:11: devices.count: a sweep has none"),
        ("at_least: 2", "at_least: 5", "with n from 1 to 4"),
        ("{at_least: 2}", "chief", "train.success: chief does not fit a sweep"),
        ("train.py, success", "train.py, strategy: sync, success", "train.strategy: sync does not fit a sweep"),
        ("{publish", "{aggregate: best, publish", "checkpoints.aggregate: a sweep does not use it"),
        ("{publish", "{metric: loss, publish", "checkpoints.metric: a sweep does not use it"),
        (
            "sweep:\n",
            "inputs: {a: {uri: 'file:///a', shard: files}}\nsweep:\n",
            "inputs.a.shard: a sweep does not share",
        ),
        ("lr: [0.1, 0.01]", "lr: ['{{ pharams.lr }}']", "'pharams' is not defined"),
    ],
)
def test_what_does_not_fit_a_sweep_is_told_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SWEEP
    assert message in errors(tmp_path, SWEEP.replace(old, new))


def test_more_trials_than_a_gang_may_have_are_refused(tmp_path: Path) -> None:
    many = "lr: [" + ", ".join(map(str, range(40))) + "], batch: [" + ", ".join(map(str, range(30))) + "]"
    text = SWEEP.replace("lr: [0.1, 0.01], batch: [32, 64]", many)
    assert "1200 trials are too many" in errors(tmp_path, text)
