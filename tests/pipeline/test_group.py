"""A declaration as a group of tasks in a DAG written by hand."""

from __future__ import annotations

import json

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Param, TaskGroup
from airflow.serialization.serialized_objects import DagSerialization

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.identity import RunFolders
from airflow_tf.pipeline import build_dag, build_task_group, load_declaration, load_task_group
from airflow_tf.pipeline.errors import InvalidDeclarationError
from tests.pipeline.declarations import VALID, changed, with_lines, write

WHOLE = with_lines("  export: {entrypoint: train.py}\n  initial_checkpoint: latest\napproval: {}\nowner: ann\n")


def serialized(dag, prefix):
    """Return each task as Airflow stores it, without the group's id and where its inputs are because of it."""

    def without_place(value):
        if isinstance(value, dict):
            return {key: without_place(item) for key, item in value.items() if key != "staged_as"}
        return [without_place(item) for item in value] if isinstance(value, list) else value

    tasks = json.dumps(without_place(DagSerialization.to_dict(dag)["dag"]["tasks"]), sort_keys=True)
    return sorted(json.loads(tasks.replace(prefix, "")), key=str)


def test_the_tasks_are_those_of_a_dag_of_its_own_but_for_the_prefix(tmp_path):
    loaded = load_declaration(write(tmp_path, WHOLE))
    with DAG("by_hand", schedule=None) as dag:
        group = build_task_group(loaded, "fit")
    assert [task.task_id for task in dag.tasks][:3] == ["fit.stage.train", "fit.stage.holdout", "fit.reserve_devices"]
    assert serialized(dag, "fit.") == serialized(build_dag(loaded), "fit.")
    assert group.doc_md == build_dag(loaded).doc_md


def test_a_group_is_a_step_of_the_dag_that_it_is_in(tmp_path):
    with DAG("by_hand", schedule=None) as dag:
        EmptyOperator(task_id="before") >> load_task_group(write(tmp_path)) >> EmptyOperator(task_id="after")
    assert dag.get_task("churn.stage.train").upstream_task_ids == {"before"}
    assert dag.get_task("churn.publish").downstream_task_ids == {"after"}


def test_dots_of_the_dag_id_become_underscores_since_groups_have_none(tmp_path):
    with DAG("by_hand", schedule=None) as dag:
        load_task_group(write(tmp_path, changed("dag_id: churn", "dag_id: team.churn.v2")))
    assert dag.get_task("team_churn_v2.publish").from_task == "team_churn_v2.aggregate_checkpoints"


def test_two_groups_of_one_dag_share_nothing(tmp_path):
    loaded = load_declaration(write(tmp_path))
    with DAG("by_hand", schedule=None) as dag, TaskGroup("outer"):
        build_task_group(loaded, "a") >> build_task_group(loaded, "b")
    a, b = (dag.get_task(f"outer.{name}.train").partial_kwargs["inputs"]["train"] for name in "ab")
    assert (a["staged_as"], b["staged_as"]) == ("outer.a.train", "outer.b.train")
    assert "outer.a.stage.train" in a["digest"]
    assert dag.get_task("outer.a.stage.train").input_name == "outer.a.train"
    assert dag.get_task("outer.b.reserve_devices").for_task == "outer.b.train"
    assert dag.get_task("outer.b.publish").from_task == "outer.b.aggregate_checkpoints"
    assert dag.get_task("outer.b.publish").evaluation_task == "outer.b.evaluate"


def test_the_longest_ids_get_different_folders(tmp_path):
    folders = RunFolders(tmp_path, "dag", "run")
    names = [f"{'x' * 60}.{name}" for name in "ab"]
    assert len({folders.staged(name) for name in names}) == 2


def test_the_params_become_those_of_the_dag(tmp_path):
    loaded = load_declaration(write(tmp_path))
    with DAG("by_hand", schedule=None, params={"mine": 1}) as dag:
        build_task_group(loaded, "a")
        build_task_group(loaded, "b")
    assert dict(dag.params) == {"mine": 1, "epochs": 3}


@pytest.mark.parametrize(
    ("declared", "mine", "schema"),
    [
        ("3", 3, {"type": "number"}),
        ("{type: integer, default: 3}", Param(3, type="integer"), {"type": "integer"}),
        ("{type: integer, default: 3}", 3, {"type": "integer"}),
    ],
)
def test_a_dag_may_have_the_same_param(tmp_path, declared, mine, schema):
    text = changed("{type: integer, default: 3, minimum: 1}", declared)
    with DAG("by_hand", schedule=None, params={"epochs": mine}) as dag:
        load_task_group(write(tmp_path, text))
    assert dag.params.get_param("epochs").schema == schema


def test_another_param_of_the_same_name_is_refused(tmp_path):
    loaded = load_declaration(write(tmp_path))
    with (
        DAG("by_hand", schedule=None, params={"epochs": Param(5, type="integer")}),
        pytest.raises(DeclarationError) as caught,
    ):
        build_task_group(loaded)
    assert "params.epochs is not what DAG by_hand already has under this name" in str(caught.value)


def test_all_replicas_of_all_groups_may_run_at_once(tmp_path):
    with DAG("by_hand", schedule=None, max_active_tasks=4) as dag:
        for name in "ab":
            load_task_group(write(tmp_path, changed("count: 2", "count: 40")), name)
    assert dag.max_active_tasks == 80


def test_the_errors_of_the_file_are_those_of_the_dag_file(tmp_path):
    with (
        DAG("by_hand", schedule=None),
        pytest.raises(InvalidDeclarationError, match=r"churn\.tf\.yaml:6:1: input: unknown key"),
    ):
        load_task_group(write(tmp_path, changed("inputs:\n", "input:\n")))


def test_outside_of_a_dag_it_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="inside a dag"):
        load_task_group(write(tmp_path, VALID))
