"""Trials of a sweep: what each is told to run, what is said of them, and which is chosen."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tf.core.errors import AirflowTfError
from airflow_tf.core.ledger import Outcome, ReplicaRecord
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.operators.sweep import TensorFlowTrialOperator, trial_rows, with_checkpoints

TRIALS: list[dict[str, Any]] = [{"lr": 0.1}, {"lr": 0.01}, {"lr": 0.001}, {"lr": 1}]
WHY = "stopped early: at step 3 its loss 9 is worse than 1, the median of 2 other trials"


def record(state: AttemptState, loss: float | None, **fields: Any) -> ReplicaRecord:
    metrics = {} if loss is None else {"step": 5, "loss": loss}
    return ReplicaRecord(1, 1, 1, Outcome(state, metrics=metrics, **fields), fence=7)


def operator(**fields: Any) -> TensorFlowTrialOperator:
    return TensorFlowTrialOperator(task_id="train", entrypoint="train.py", replica=1, trials=TRIALS, **fields)


def test_the_best_trial_comes_first_and_those_that_failed_last() -> None:
    records = {
        0: record(AttemptState.SUCCEEDED, 2.0),
        1: record(AttemptState.SUCCEEDED, 1.0),
        2: record(AttemptState.FAILED, 0.1, cause=ExitCause.USER_ERROR, message="it broke\nlast lines"),
    }
    rows = trial_rows(records, TRIALS, "loss", "min")
    assert [row["trial"] for row in rows] == [1, 0, 2, 3]
    assert rows[0] == {
        "trial": 1,
        "arguments": {"lr": 0.01},
        "state": "succeeded",
        "value": 1.0,
        "step": 5,
        "why": "",
    }
    assert [(row["state"], row["why"]) for row in rows[2:]] == [("failed", "it broke"), ("no result", "")]
    assert [row["trial"] for row in trial_rows(records, TRIALS, "loss", "max")][:2] == [0, 1]


def test_a_trial_that_was_stopped_early_is_named_so_and_needs_no_checkpoint() -> None:
    stopped = record(AttemptState.SUCCEEDED, 9.0, cause=ExitCause.STOPPED_EARLY, message=WHY)
    [row] = trial_rows({0: stopped}, TRIALS[:1], "loss", "min")
    assert (row["state"], row["why"]) == ("stopped early", WHY)
    failed = record(AttemptState.SUCCEEDED, 9.0)
    left = with_checkpoints({0: stopped, 1: failed})
    assert left[0].outcome is not None
    assert left[0].outcome.checkpoint == ""
    assert left[1] is failed


def test_a_trial_is_shown_by_its_arguments() -> None:
    assert operator().trial_name == "lr=0.01"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"strategy": "sync"}, "strategy sync does not fit a sweep"),
        ({"stop_early": {}}, "stop_early needs a metric"),
    ],
)
def test_what_does_not_fit_a_sweep_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(AirflowTfError, match=message):
        operator(**fields)._plan({})  # type: ignore[arg-type]  # reads nothing of the context


def test_the_rule_for_stopping_early_reaches_the_supervisor() -> None:
    plan = operator(metric="auc", mode="max", stop_early={"min_steps": 4})._plan({})  # type: ignore[arg-type]
    assert plan.early_stop == {"metric": "auc", "mode": "max", "min_steps": 4, "min_trials": 3}
    assert operator()._plan({}).early_stop is None  # type: ignore[arg-type]
