"""Mapped task groups: what trains there has a replica for each instance of the group, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, task, task_group

from airflow_tf.core.errors import DeclarationError
from airflow_tf.operators.evaluate import CheckpointEvaluateOperator
from airflow_tf.operators.train import TensorFlowTrainOperator


def train() -> TensorFlowTrainOperator:
    return TensorFlowTrainOperator(task_id="train", replica=0, count=1, entrypoint="train.py")


def evaluate() -> CheckpointEvaluateOperator:
    return CheckpointEvaluateOperator(task_id="evaluate", entrypoint="evaluate.py")


@pytest.mark.parametrize("make", [train, evaluate])
@pytest.mark.parametrize("nested", [False, True])
def test_one_replica_for_all_instances_of_a_group_is_refused_when_the_dag_is_parsed(make: Any, nested: bool) -> None:
    @task_group
    def inner() -> None:
        make()

    @task_group
    def each(rate: float) -> None:
        inner() if nested else make()

    message = r"cannot run in the mapped task group 'each'.*the same replica of one training.*@task.tensorflow"
    with DAG("groups", schedule=None), pytest.raises(DeclarationError, match=message):
        each.expand(rate=[0.1, 0.2])


@pytest.mark.parametrize("make", [train, evaluate])
def test_a_group_that_is_not_mapped_takes_them(make: Any) -> None:
    @task_group
    def group() -> None:
        make()

    with DAG("groups", schedule=None) as dag:
        group()
    assert [each.task_id for each in dag.tasks] == [f"group.{make.__name__}"]


def test_functions_are_taken_since_each_instance_is_a_replica_of_its_own() -> None:
    @task.tensorflow
    def fit(rate: float) -> dict[str, float]:
        return {"loss": rate}

    @task_group
    def each(rate: float) -> None:
        fit(rate)

    with DAG("groups", schedule=None) as dag:
        each.expand(rate=[0.1, 0.2])
    assert [each.task_id for each in dag.tasks] == ["each.fit"]
