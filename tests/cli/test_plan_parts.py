"""The plan of a declaration with trials or with several trainings."""

from __future__ import annotations

import pytest

SWEEP = """dag_id: x
devices: {kind: cpu}
params: {fast: 0.1}
train: {entrypoint: train.py}
sweep: {trials: [{lr: "{{ params.fast }}"}, {lr: 0.01, batch: 32}], metric: loss}
"""
STAGES = """dag_id: x
devices: {kind: cpu}
train: {entrypoint: train.py}
stages:
  second: {starts_from: first, devices: {count: 2}}
  first: {train: {python: no-such-interpreter}}
"""


@pytest.fixture
def shown(airflow_tf, tmp_path):
    """Return a function that plans a declaration, as JSON and as people see it."""
    (tmp_path / "train.py").touch()
    file = tmp_path / "x.tf.yaml"

    def run(text):
        file.write_text(text)
        code, [row] = airflow_tf("plan", file, "--output", "json")
        return code, row, airflow_tf("plan", file)[1]

    return run


def test_the_trials_of_a_sweep_are_listed(shown):
    code, row, text = shown(SWEEP)
    assert "  trial 1: lr=0.01 batch=32\n" in text
    assert (code, row["problems"]) == (0, [])
    assert row["trials"] == [{"lr": "0.1"}, {"lr": 0.01, "batch": 32}]
    assert {task["task"]: task["instances"] for task in row["tasks"]} == {
        "wait_for_devices": 1,
        "train": 2,
        "best_trial": 1,
    }


def test_each_stage_has_its_plan_and_its_problems(shown):
    code, row, text = shown(STAGES)
    assert "Stage second\n  begins with what stage first has made\n" in text
    assert code == 1
    assert list(row["stages"]) == ["first", "second"]
    assert row["stages"]["second"]["starts_from"] == "first"
    assert len(row["stages"]["second"]["train"]["replicas"]) == 2
    assert [problem["key"] for problem in row["problems"]] == ["stages.first.train.python"]
