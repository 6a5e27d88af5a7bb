"""What the operators of a gang share: that they use the sensor's ledger."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_tf.core.errors import LedgerError
from airflow_tf.hooks.airflow_run import TEMPORARY_RUN_PREFIX, TaskRun, user_mark
from airflow_tf.operators.gang import check_ledger
from airflow_tf.operators.train import TensorFlowTrainOperator
from airflow_tf.sensors.devices import DeviceAvailabilitySensor


def context_with(xcoms: dict[str, Any]) -> Any:
    with DAG("dag", schedule=None) as dag:
        DeviceAvailabilitySensor(task_id="reserve", for_task="train")
        DeviceAvailabilitySensor(task_id="reserve_other", for_task="other")
        TensorFlowTrainOperator(task_id="train", replica=0, entrypoint="train.py")
    return {"dag": dag, "ti": SimpleNamespace(xcom_pull=lambda **given: xcoms.get(given["task_ids"]))}


def run_of(run_id: str = "run") -> TaskRun:
    return TaskRun("dag", run_id, "train", "ti", 1, 0, 0, 10.0, in_process=False)


@pytest.mark.parametrize(
    "xcoms",
    [{}, {"reserve": {"ledger_id": "ours"}}, {"reserve": None}, {"reserve_other": {"ledger_id": "theirs"}}],
)
def test_the_same_ledger_or_none_is_fine(xcoms: dict[str, Any]) -> None:
    check_ledger(context_with(xcoms), run_of(), "ours")


def test_a_sensor_that_reserved_in_another_ledger_is_named() -> None:
    context = context_with({"reserve": {"ledger_id": "theirs"}})
    with pytest.raises(LedgerError, match=r"sensor 'reserve' reserved devices in ledger theirs.* uses ledger ours"):
        check_ledger(context, run_of(), "ours")


def test_a_task_that_is_tested_alone_asks_no_sensor() -> None:
    context = context_with({"reserve": {"ledger_id": "theirs"}})
    check_ledger(context, run_of(f"{TEMPORARY_RUN_PREFIX}x"), "ours")


@pytest.mark.parametrize(
    ("state", "own", "mark"),
    [
        ("running", "running", ""),
        ("deferred", "deferred", ""),
        ("failed", "running", "marked failed"),
        ("success", "deferred", "marked success"),
        ("restarting", "running", "cleared"),
        ("queued", "running", ""),  # a new scheduler has reset it
        (None, "running", ""),
        ("up_for_retry", "running", ""),  # its heartbeats were missing
        ("running", "deferred", "cleared"),
        (None, "deferred", "cleared"),
    ],
)
def test_what_a_user_did_is_read_from_the_state_of_the_task(state: str | None, own: str, mark: str) -> None:
    assert user_mark(state, own) == mark
