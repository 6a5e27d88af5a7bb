"""The plan of a declaration with trials or with several trainings."""

from __future__ import annotations

from types import SimpleNamespace

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


def test_a_trial_knows_how_many_there_are(shown):
    _, row, _ = shown(SWEEP.replace("train.py}", "train.py, arguments: {of: '{{ replica.count }}'}}"))
    assert row["train"]["arguments"] == {"of": "2"}


def test_a_param_without_a_value_is_a_problem_of_the_dag_told_once(shown):
    _, row, _ = shown(STAGES.replace("stages:", "params: {epochs: {type: integer}}\nstages:"))
    assert [problem["key"] for problem in row["problems"]] == ["params.epochs", "stages.first.train.python"]


def test_the_space_must_do_for_the_inputs_of_all_stages_and_what_they_share_is_copied_once(
    shown, tmp_path, monkeypatch
):
    for name in ("shared", "own"):
        (tmp_path / name).write_bytes(b"1,2\n" * 100)
    text = STAGES.replace("stages:", f"inputs: {{shared: 'file://{tmp_path}/shared'}}\nstages:").replace(
        "python: no-such-interpreter}", f"api: auto}}, inputs: {{own: {{uri: 'file://{tmp_path}/own'}}}}"
    )
    free = SimpleNamespace(free=800)
    monkeypatch.setattr("airflow_tf.cli.planning.shutil.disk_usage", lambda _path: free)
    code, row, _ = shown(text)
    assert (code, row["problems"]) == (0, [])
    free.free = 799
    _, row, _ = shown(text)
    assert [problem["key"] for problem in row["problems"]] == ["inputs"]


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("null", "no schedule"),
        ("'@daily'", "schedule @daily"),
        ("['file:///a', 'file:///b']", "after file:///a, file:///b"),
        (
            "{timetable: DeltaTriggerTimetable, delta: 6h, interval: 1h}",
            "schedule DeltaTriggerTimetable (delta=6h, interval=1h)",
        ),
        (
            "{timetable: CronTriggerTimetable, expression: '0 4 * * *', assets: ['file:///a', 'file:///b']}",
            "schedule CronTriggerTimetable (expression=0 4 * * *) or after file:///a, file:///b",
        ),
    ],
)
def test_when_runs_begin_is_said_in_words(shown, schedule, said):
    text = shown(SWEEP.replace("devices:", f"schedule: {schedule}\ndevices:"))[2]
    assert text.splitlines()[0] == f"DAG x, {said}"
