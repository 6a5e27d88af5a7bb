"""What the tasks of a training are in a sweep: trials instead of replicas, and the choice of the best."""

from __future__ import annotations

from typing import Any

from airflow.sdk import TriggerRule

from airflow_tf.core.verdict import ALL
from airflow_tf.operators.sweep import SweepBestOperator
from airflow_tf.pipeline.models import Declaration, SweepSpec

BEST_TRIAL = "best_trial"


def trial_arguments(sweep: SweepSpec) -> dict[str, Any]:
    """Return what the trials' task is given beside what every training is."""
    given: dict[str, Any] = {"trials": sweep.arguments, "metric": sweep.metric, "mode": sweep.mode}
    if sweep.stop_early is not None:
        given["stop_early"] = sweep.stop_early.model_dump()
    if sweep.parallel is not None:
        given["max_active_tis_per_dagrun"] = sweep.parallel
    return given | {"map_index_template": "{{ task.trial_name }}"}


def best_task(declaration: Declaration, from_task: str) -> SweepBestOperator:
    """Build the task that chooses the best trial; of those that need not succeed it counts the ones that did."""
    every = declaration.train.success == ALL
    rule: dict[str, Any] = {} if every else {"trigger_rule": TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS}
    return SweepBestOperator(task_id=BEST_TRIAL, from_task=from_task, **rule)
