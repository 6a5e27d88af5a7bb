"""Evaluate candidate checkpoints with the user's own program."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from airflow.sdk import Context

from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.session_config import ConfigContext, ValidatedConfig
from airflow_tf.core.session_config.roles import common_part
from airflow_tf.core.units import is_finite
from airflow_tf.operators.gang import airflow_errors
from airflow_tf.operators.replica import ReplicaOperator


class CheckpointEvaluateOperator(ReplicaOperator):
    """Run a program that measures each candidate of an aggregation, as one replica on one device of its own.

    The program finds ``AIRFLOW_TF_CANDIDATES`` (JSON: name -> checkpoint prefix) and writes
    ``AIRFLOW_TF_EVALUATION_FILE`` (JSON: ``{"candidates": {name: {metric: value}}, "baselines": {…}}``).

    :param from_task: task id of the aggregation.
    :return: XCom with the content of the evaluation file.
    """

    ui_color = "#b07aa1"

    def __init__(self, *, from_task: str = "aggregate_checkpoints", **kwargs: Any) -> None:
        super().__init__(**{"replica": 0, "count": 1, "require_checkpoint": False} | kwargs)
        self.from_task = from_task

    def _launch(self, context: Context, devices: ConfigContext, replica: int) -> ReplicaLaunch:
        aggregated = context["ti"].xcom_pull(task_ids=self.from_task)
        if not aggregated:
            raise CheckpointError(f"task {self.from_task!r} left no candidates in this run")
        launch = super()._launch(context, devices, replica)
        variables = {"AIRFLOW_TF_CANDIDATES": json.dumps(aggregated["candidates"])}
        return dataclasses.replace(launch, environment=launch.environment | variables)

    def _session_config(self, value: Any, devices: ConfigContext, context: Context, replica: int) -> ValidatedConfig:  # noqa: ANN401 (rendered)
        """Check what the training's replicas are all given: nothing here is in their cluster."""
        return super()._session_config(common_part(value), devices, context, replica)

    def _result(self, context: Context, folder: Path, outcome: Outcome, devices: list[str]) -> dict[str, Any]:
        super()._result(context, folder, outcome, devices)
        with airflow_errors():
            return check_evaluation(outcome.metrics.get("evaluation"))


def check_evaluation(data: Any) -> dict[str, Any]:  # noqa: ANN401 (whatever the program wrote)
    """Return an evaluation as ``{"candidates": {name: {metric: float | None}}, "baselines": {…}}``.

    NaN, infinity and null become None, which JSON has a word for and which never wins a comparison.

    :raises CheckpointError: if the program wrote nothing, or not what was asked.
    """
    todo = 'Write {"candidates": {name: {metric: number}}, "baselines": {…}} as JSON to AIRFLOW_TF_EVALUATION_FILE.'
    if data is None:
        raise CheckpointError("the evaluation program ended well but wrote no readable result", todo=todo)
    try:
        tables = {"candidates": data["candidates"], "baselines": data.get("baselines", {})}
        return {
            kind: {name: {metric: _number(value) for metric, value in row.items()} for name, row in table.items()}
            for kind, table in tables.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError("the evaluation result cannot be read", repr(error), todo) from error


def _number(value: Any) -> float | None:  # noqa: ANN401 (whatever the program wrote)
    if value is None:
        return None
    number = value if isinstance(value, int) else float(value)
    return float(number) if is_finite(number) else None
