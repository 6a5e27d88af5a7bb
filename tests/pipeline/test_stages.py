"""Declarations of several trainings: the tasks they become, and what is wrong where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from airflow.serialization.serialized_objects import DagSerialization
from jsonschema import Draft202012Validator

from airflow_tf.pipeline.build import load_dag
from airflow_tf.pipeline.declaration import load_declaration
from airflow_tf.pipeline.errors import InvalidDeclarationError
from airflow_tf.pipeline.schema import declaration_schema
from tests.pipeline.declarations import write

STAGES = """dag_id: x
devices: {kind: cpu}
inputs: {data: 'file:///data'}
train: {entrypoint: train.py, arguments: {epochs: 3}}
stages:
  finetune:
    starts_from: pretrain
    train: {arguments: {rate: 0.1}}
    checkpoints: {publish: 'file:///models'}
  pretrain:
    devices: {count: 2}
    evaluate: {entrypoint: train.py, metric: mae}
  look:
    after: [pretrain]
    inputs: null
    checkpoints: {aggregate: none}
"""


def errors(folder: Path, text: str) -> list[str]:
    with pytest.raises(InvalidDeclarationError) as caught:
        load_declaration(write(folder, text))
    return [line.partition(".tf.yaml:")[2] for line in str(caught.value).splitlines()]


def test_each_stage_is_a_group_after_those_that_it_waits_for(tmp_path: Path) -> None:
    dag = load_dag(write(tmp_path, STAGES))
    assert {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks} == {
        "pretrain.stage.data": ["pretrain.reserve_devices"],
        "pretrain.reserve_devices": ["pretrain.train"],
        "pretrain.train": ["pretrain.aggregate_checkpoints"],
        "pretrain.aggregate_checkpoints": ["pretrain.evaluate"],
        "pretrain.evaluate": ["finetune.stage.data", "look.reserve_devices"],
        "finetune.stage.data": ["finetune.reserve_devices"],
        "finetune.reserve_devices": ["finetune.train"],
        "finetune.train": ["finetune.aggregate_checkpoints"],
        "finetune.aggregate_checkpoints": ["finetune.publish"],
        "finetune.publish": [],
        "look.reserve_devices": ["look.train"],
        "look.train": [],
    }
    pretrain, finetune = (dag.get_task(f"{name}.train") for name in ("pretrain", "finetune"))
    assert pretrain.expand_input.value == {"replica": [0, 1]}
    assert finetune.partial_kwargs["arguments"] == {"epochs": 3, "rate": 0.1}
    assert finetune.partial_kwargs["initial_checkpoint"] == {
        "from_task": "pretrain.aggregate_checkpoints",
        "evaluation_task": "pretrain.evaluate",
        "metric": "mae",
        "mode": "min",
    }
    assert "initial_checkpoint" not in pretrain.partial_kwargs


def test_a_stage_begins_with_what_another_one_has_published(tmp_path: Path) -> None:
    text = STAGES.replace("devices: {count: 2}", "checkpoints: {publish: 'file:///others', hdfs_conn_id: other}")
    assert load_dag(write(tmp_path, text)).get_task("finetune.train").partial_kwargs["initial_checkpoint"] == {
        "source": "{{ ti.xcom_pull(task_ids='pretrain.publish')['uri'] }}",
        "digest": "{{ ti.xcom_pull(task_ids='pretrain.publish')['digest'] }}",
        "hdfs_conn_id": "other",
    }


def test_the_same_stages_give_the_same_dag(tmp_path: Path) -> None:
    file = write(tmp_path, STAGES)
    first, second = (json.dumps(DagSerialization.to_dict(load_dag(file)), sort_keys=True) for _ in range(2))
    assert first == second


def test_a_replica_that_may_fail_does_not_skip_the_stages_after_it(tmp_path: Path) -> None:
    text = """dag_id: x
devices: {kind: cpu, count: 3}
train: {entrypoint: train.py}
checkpoints: {aggregate: none}
stages:
  a: {train: {success: {at_least: 2}}}
  b: {after: [a]}
"""
    dag = load_dag(write(tmp_path, text))
    [before] = dag.get_task("b.reserve_devices").upstream_list
    assert (before.task_id, before.trigger_rule) == ("a.trained", "none_failed_min_one_success")
    assert before.upstream_task_ids == {"a.train"}
    assert dag.get_task("b.train").downstream_task_ids == set()


def test_all_replicas_of_stages_that_train_side_by_side_may_run_at_once(tmp_path: Path) -> None:
    text = "dag_id: x\ndevices: {count: 12}\ntrain: {entrypoint: train.py}\nstages: {a: {}, b: {}}\n"
    assert load_dag(write(tmp_path, text)).max_active_tasks == 24


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "starts_from: pretrain",
            "starts_from: pretrian",
            "7:5: stages.finetune.starts_from: there is no stage 'pretrian'. Did you mean \"pretrain\"? Stages are: f",
        ),
        ("[pretrain]", "[finetune, pre]", "14:23: stages.look.after[1]: there is no stage 'pre'. Stages are: finetune"),
        (
            "devices: {count: 2}",
            "after: [finetune]",
            "6:3: stages.finetune: finetune and pretrain wait for each other. Remove one",
        ),
        ("[pretrain]", "[look]", "13:3: stages.look: look waits for itself. Remove one"),
        ("[pretrain]", "pretrain", "14:5: stages.look.after: 'pretrain' is wrong"),
        ("starts_from: pretrain", "starts_from: look", "7:5: stages.finetune.starts_from: stage look makes no checkpoint"),
        (
            "{publish: 'file:///models'}",
            "{publish: 'file:///models', initial_checkpoint: latest}",
            "7:5: stages.finetune.starts_from: the stage begins with one checkpoint",
        ),
        (
            "devices: {count: 2}",
            "checkpoints: {publish: 'file:///models/'}",
            "11:19: stages.pretrain.checkpoints.publish: stage finetune publishes there too",
        ),
        ("    evaluate:", "    evaluat:", '12:5: stages.pretrain.evaluat: unknown key. Did you mean "evaluate"?'),
        ("{count: 2}", "{count: 2}\n    schedule: null", '12:5: stages.pretrain.schedule: unknown key. "schedule" belongs'),
        ("{count: 2}", "{count: two}", "11:15: stages.pretrain.devices.count: 'two' is wrong"),
        ("kind: cpu", "kind: cpuu", "2:11: devices.kind: 'cpuu' is wrong"),
        ("dag_id: x", "dag_id: x y", "1:1: dag_id: 'x y' cannot be a DAG id"),
        ("  look:", f"  {'l' * 81}:", f"13:3: stages.{'l' * 81}: '{'l' * 81}' cannot be the name of a stage"),
        ("  look:", "  lo ok:", "13:3: stages.lo ok: 'lo ok' cannot be the name of a stage"),
        ("{rate: 0.1}", "{rate: '{{ parms.x }}'}", "8:25: stages.finetune.train.arguments.rate: 'parms' is not defined"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_stage_is_told_once_with_its_place(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in STAGES
    found = errors(tmp_path, STAGES.replace(old, new, 1))
    assert [line.startswith(message) for line in found] == [True], found


def test_a_stage_that_is_no_mapping_and_stages_that_are_none_are_refused(tmp_path: Path) -> None:
    assert errors(tmp_path, "dag_id: x\nstages:\n  a: train.py\n") == [
        "3:3: stages.a: 'train.py' is not a mapping. Write train and what else is its own below it."
    ]
    assert any("stages: {} is wrong" in line for line in errors(tmp_path, "dag_id: x\nstages: {}\n"))


def test_an_editor_asks_of_the_top_only_what_stages_cannot_have() -> None:
    check = Draft202012Validator(declaration_schema())
    whole = yaml.safe_load(STAGES)
    assert list(check.iter_errors(whole)) == []
    partial = whole | {"train": {"arguments": {"epochs": 3}}}
    assert list(check.iter_errors(partial)) == []
    alone = {key: value for key, value in partial.items() if key != "stages"}
    assert [error.message for error in check.iter_errors(alone)] == ["'entrypoint' is a required property"]
