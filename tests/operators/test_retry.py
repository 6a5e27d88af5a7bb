"""Which failures are retried, and how soon."""

from __future__ import annotations

import datetime as dt
import json

import jinja2
import pytest
from airflow.sdk import DAG, RetryAction
from airflow.sdk.exceptions import AirflowException
from airflow.serialization.serialized_objects import DagSerialization

from airflow_tf.core.errors import DeclarationError, DevicesBusyError, InputError, UserCodeError
from airflow_tf.core.states import ExitCause
from airflow_tf.operators.evaluate import CheckpointEvaluateOperator
from airflow_tf.operators.retry import FailureClassPolicy, ReplicaEndedError
from airflow_tf.operators.train import TensorFlowTrainOperator


def made_of(cause: BaseException) -> AirflowException:
    error = AirflowException("failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "action", "delay"),
    [
        (ReplicaEndedError("x", ExitCause.DEVICE_LOST), RetryAction.RETRY, dt.timedelta(0)),
        (ReplicaEndedError("x", ExitCause.PREEMPTED), RetryAction.RETRY, dt.timedelta(0)),
        (ReplicaEndedError("x", ExitCause.HOST_OOM), RetryAction.DEFAULT, None),
        (ReplicaEndedError("x", ExitCause.HANG), RetryAction.DEFAULT, None),
        (DeclarationError("x"), RetryAction.FAIL, None),
        (InputError("x"), RetryAction.FAIL, None),
        (UserCodeError("x"), RetryAction.FAIL, None),
        (made_of(UserCodeError("x")), RetryAction.FAIL, None),
        (jinja2.UndefinedError("x"), RetryAction.FAIL, None),
        (DevicesBusyError("x"), RetryAction.DEFAULT, None),
        (made_of(DevicesBusyError("x")), RetryAction.DEFAULT, None),
        (AirflowException("x"), RetryAction.DEFAULT, None),
        (ConnectionError("x"), RetryAction.DEFAULT, None),
    ],
)
def test_the_class_of_the_failure_decides(
    error: BaseException, action: RetryAction, delay: dt.timedelta | None
) -> None:
    decision = FailureClassPolicy().evaluate(error, 1, 3)
    assert (decision.action, decision.retry_delay) == (action, delay)
    assert bool(decision.reason) == (action is not RetryAction.DEFAULT)


@pytest.mark.parametrize("name", ["ds", "logical_date", "data_interval_start"])
def test_a_template_without_a_date_is_told_what_to_use(name: str) -> None:
    reason = FailureClassPolicy().evaluate(jinja2.UndefinedError(f"'{name}' is undefined"), 1, 3).reason
    assert reason == (
        f"a template is wrong: '{name}' is undefined. This run has no logical date: assets have started it, or the API "
        "did so without one. Use run_id or dag_run.run_after, or give a default."
    )


def test_a_template_with_another_unknown_name_is_told_nothing_of_dates() -> None:
    reason = FailureClassPolicy().evaluate(jinja2.UndefinedError("'dss' is undefined"), 1, 3).reason
    assert reason == "a template is wrong: 'dss' is undefined."


def test_tasks_that_run_replicas_have_it_unless_they_are_given_another() -> None:
    class Other(FailureClassPolicy):
        pass

    with DAG("x", schedule=None) as dag:
        TensorFlowTrainOperator(task_id="alone", replica=0, entrypoint="a:b")
        TensorFlowTrainOperator(task_id="given", replica=0, entrypoint="a:b", retry_policy=Other())
        CheckpointEvaluateOperator(task_id="evaluate", entrypoint="a:b")
        mapped = TensorFlowTrainOperator.partial(task_id="mapped", entrypoint="a:b").expand(replica=[0, 1])
    policies = {name: type(dag.get_task(name).retry_policy) for name in ("alone", "given", "evaluate")}
    assert policies == {"alone": FailureClassPolicy, "given": Other, "evaluate": FailureClassPolicy}
    assert isinstance(mapped.unmap({"replica": 1}).retry_policy, FailureClassPolicy)
    json.dumps(DagSerialization.to_dict(dag))


def test_airflow_can_store_it() -> None:
    assert isinstance(FailureClassPolicy.deserialize(FailureClassPolicy().serialize()), FailureClassPolicy)
