"""A training task that comes back from the triggerer: for the result, a timeout, a loss, or to wait on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout, TaskDeferred

from airflow_tf.core.identity import View
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import CLEARED_REASON, AttemptState, ExitCause
from airflow_tf.ledger import Ledger
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.operators import deferral as module
from airflow_tf.operators.retry import ReplicaEndedError
from airflow_tf.operators.train import TensorFlowTrainOperator
from airflow_tf.triggers.replica import ENDED, LOST, SUPERSEDED, TIMED_OUT
from tests.triggers.running import DONE, Running

KILLED = Outcome(AttemptState.FAILED, ExitCause.KILLED, "killed")


@pytest.fixture
def running(settings: Settings, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(module, "load_settings", lambda: settings)
    monkeypatch.setattr(module, "RESTART_SECONDS", 1.0)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    made = Running(settings, ledger)
    yield made
    if made.lock >= 0:
        os.close(made.lock)


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(module.DeferringOperator, "_log_output", lambda _, text: lines.append(text))
    return lines


def task(**arguments: Any) -> TensorFlowTrainOperator:
    with DAG("dag", schedule=None):
        return TensorFlowTrainOperator(
            task_id="train", replica=0, entrypoint="train.py", deferrable=True, kill_grace_seconds=0, **arguments
        )


def context_of(operator: TensorFlowTrainOperator) -> Any:
    ti = SimpleNamespace(
        dag_id="dag", run_id="run", task_id="train", id="ti-1", try_number=1, max_tries=0, map_index=-1
    )
    return {"ti": ti, "task": operator, "dag": operator.dag}


def resume(event: str, operator: TensorFlowTrainOperator | None = None) -> Any:
    operator = operator or task()
    arguments = {"event": event, "devices": ["cpu-0"]}
    return operator.resume_execution("resume", arguments, context_of(operator))


def test_it_shows_the_rest_of_the_output_and_returns_the_result(running: Running, output: list[str]) -> None:
    running.write("one\ntwo\nopen end")
    running.ledger.renew_view(running.key, 0, View("ti-1", 1, 1), (1, 4))
    running.end()
    assert resume(ENDED) == {"replica": 0, "checkpoint": "/ck-1", "metrics": {}, "devices": ["cpu-0"]}
    assert output == ["two", "open end"]
    assert running.ledger.replicas(running.key)[0].log_position == (1, 16)


def test_a_replica_that_was_still_ending_after_a_clear_is_begun_anew(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TensorFlowTrainOperator, "_run", lambda *_: "anew")
    running.end(Outcome(AttemptState.STOPPED, ExitCause.MARKED, CLEARED_REASON))
    assert resume(ENDED) == "anew"


@pytest.mark.parametrize(
    ("outcome", "error"),
    [(KILLED, ReplicaEndedError), (Outcome(AttemptState.FAILED, ExitCause.USER_ERROR, "bug"), AirflowFailException)],
)
def test_it_fails_as_the_attached_form_does(running: Running, outcome: Outcome, error: type[Exception]) -> None:
    running.end(outcome)
    with pytest.raises(error, match=f"replica 0 failed: {outcome.message}") as caught:
        resume(ENDED)
    assert type(caught.value) is error


def test_a_replica_that_is_started_again_is_waited_for(running: Running) -> None:
    running.end(KILLED)
    running.begin(2)
    with pytest.raises(TaskDeferred) as caught:
        resume(ENDED)
    assert caught.value.kwargs == {"devices": ["cpu-0"]}
    assert caught.value.timeout is None


def test_waiting_on_leaves_what_is_left_of_the_execution_timeout(running: Running) -> None:
    with pytest.raises(TaskDeferred) as caught:
        resume(ENDED, task(execution_timeout=timedelta(hours=1)))
    _, arguments = caught.value.trigger.serialize()
    assert arguments["watched"]["timeout_seconds"] == 3600
    assert caught.value.timeout is not None
    assert 3600 < caught.value.timeout.total_seconds() <= 3600 + module.AIRFLOW_MARGIN_SECONDS


def test_a_lost_supervisor_may_be_retried_and_its_devices_are_freed(running: Running, ledger: Ledger) -> None:
    running.kill_supervisor()
    running.ledger.release(running.member)  # confirmed by this test's pid, which lives: not reclaimed
    with pytest.raises(AirflowException, match="supervisor died while this task was deferred") as caught:
        resume(LOST)
    assert not isinstance(caught.value, AirflowFailException)
    assert LedgerReader(ledger).reservations() == []


def test_a_newer_try_is_left_alone(running: Running) -> None:
    running.ledger.enter(running.key, 0, View("ti-2", 2, 1))
    with pytest.raises(AirflowException, match="a newer try"):
        resume(SUPERSEDED)


def test_a_new_generation_of_the_gang_is_waited_for(running: Running) -> None:
    with pytest.raises(TaskDeferred):
        resume(SUPERSEDED)


def test_the_execution_timeout_is_named(running: Running, output: list[str]) -> None:
    running.write("last words\n")
    running.end(Outcome(AttemptState.STOPPED, ExitCause.STOPPED, "its time is over"))
    with pytest.raises(AirflowTaskTimeout, match="execution_timeout of 60 s is over"):
        resume(TIMED_OUT, task(execution_timeout=timedelta(seconds=60)))
    assert output == ["last words"]


def test_where_airflow_ends_the_deferral_the_replica_is_stopped_first(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MARGIN_SECONDS", 0.1)
    operator = task(execution_timeout=timedelta(seconds=60))
    with pytest.raises(AirflowTaskTimeout, match="execution_timeout of 60 s is over"):
        operator.resume_execution("__fail__", {"error": "Trigger timeout"}, context_of(operator))
    assert running.ledger.renew(running.key, os.getpid()).stops == {0: "its task's execution_timeout is over"}


def test_where_the_trigger_fails_the_task_looks_after_the_replica_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = task()
    monkeypatch.setattr(operator, "_run", lambda _: {"deferrable": operator.deferrable})
    assert operator.resume_execution("__fail__", {"error": "Trigger failure"}, context_of(operator)) == {
        "deferrable": False
    }


def test_the_output_of_another_host_is_shown_whole(running: Running, output: list[str], tmp_path: Path) -> None:
    running.write("one\ntwo\n")
    running.end(DONE)
    resume(ENDED)
    assert output == ["one", "two"]
