"""``@task.tensorflow``: what becomes of a function."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import DAG, task

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.session_config import ConfigContext
from airflow_tf.hooks.airflow_run import TaskRun
from airflow_tf.operators.decorated import TensorFlowDecoratedOperator
from airflow_tf.runtime import function as runtime


def decorated(**kwargs: Any) -> Any:
    @task.tensorflow(**kwargs)
    def fit(rate, inputs, steps=3):
        # a comment
        import math

        return {"area": math.pi * rate, "steps": steps, "inputs": len(inputs)}

    return fit


@pytest.fixture
def operator():
    with DAG("functions", schedule=None):
        return decorated(devices=2, kind="cpu")(rate=0.5).operator


def run(script: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    path, metrics = tmp_path / "script.py", tmp_path / "metrics.jsonl"
    path.write_text(script)
    monkeypatch.setenv("AIRFLOW_TF_METRICS_FILE", str(metrics))
    monkeypatch.setenv("AIRFLOW_TF_INPUT_TRAIN", str(tmp_path))
    runpy.run_path(str(path), run_name="__main__")
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


def test_airflow_knows_the_decorator() -> None:
    assert "tensorflow" in ProvidersManager().taskflow_decorators


def test_it_is_a_training_task_of_one_replica_with_its_devices(operator: Any) -> None:
    assert isinstance(operator, TensorFlowDecoratedOperator)
    assert (operator.task_id, operator.replica, operator.count) == ("fit", 0, 1)
    assert (operator.per_replica, operator.kind) == (2, "cpu")
    assert operator.require_checkpoint is False
    assert {"op_args", "op_kwargs", "session_config"} <= set(operator.template_fields)


def test_the_script_runs_the_function_and_reports_what_it_returns(
    operator: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = operator._script()
    assert "@task" not in script.split("def fit")[1]
    [metrics] = run(script, tmp_path, monkeypatch)
    assert metrics == {"area": pytest.approx(1.5708, abs=1e-4), "steps": 3.0, "inputs": 1.0}


@pytest.mark.parametrize(
    ("words", "named", "asked"),
    [
        ([0.5], {}, True),
        ([0.5], {"steps": 1}, True),
        ([], {"rate": 0.5}, True),
        ([0.5, {"train": "x"}], {}, False),
        ([0.5], {"inputs": {"train": "x"}}, False),
    ],
)
def test_inputs_that_a_call_leaves_out_are_the_staged_ones(words: Any, named: Any, asked: bool) -> None:
    with DAG("functions", schedule=None):
        operator = decorated()(*words, **named).operator
    assert (operator.op_kwargs.get("inputs", ...) is None) is asked


def test_calls_are_tasks_of_their_own() -> None:
    with DAG("functions", schedule=None) as dag:
        fit = decorated()
        for rate in (0.1, 0.2):
            fit(rate=rate)
    assert sorted(dag.task_ids) == ["fit", "fit__1"]


@pytest.fixture
def instance(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """Return a function: an instance of a mapped task, of three in its run, with its fields rendered, and its context."""
    from airflow.sdk.execution_time import task_runner

    from airflow_tf.hooks import airflow_run
    from airflow_tf.operators import decorated as module

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", object(), raising=False)
    monkeypatch.setattr(airflow_run, "task_states", lambda *_: dict.fromkeys(["fit_0", "fit_1", "fit_2"], "running"))
    monkeypatch.setattr(module, "load_settings", lambda: settings)
    monkeypatch.setattr("airflow_tf.operators.launching.load_settings", lambda: settings)
    with DAG("functions", schedule=None) as dag:
        decorated(environment={"PLACE": "{{ replica.index }} of {{ replica.count }}"}).partial(steps=7).expand(
            rate=[0.1, 0.2, 0.3]
        )
    dag.fileloc = __file__

    def make(map_index: int) -> Any:
        mapped: Any = dag.get_task("fit")
        ti = SimpleNamespace(
            dag_id="functions", run_id="run", task_id="fit", id=str(map_index), try_number=1, max_tries=0
        )
        ti.map_index = map_index
        context: Any = {"ti": ti, "task": mapped, "dag": dag, "dag_run": SimpleNamespace(conf={})}
        mapped.render_template_fields(context)
        return context["task"], context

    return make


def test_each_instance_of_a_mapped_function_is_a_replica_with_its_own_arguments(instance: Any) -> None:
    numbers, arguments, scripts = [], [], []
    for map_index in range(3):
        operator, context = instance(map_index)
        numbers.append((operator.replica, operator.count, list(operator._replicas)))
        arguments.append(operator.op_kwargs)
        launch = operator._launch(context, ConfigContext(), operator.replica)
        assert launch.environment == {"PLACE": f"{map_index} of 3"}
        scripts.append(launch.entrypoint)
    assert numbers == [(0, 3, [0]), (1, 3, [1]), (2, 3, [2])]
    assert arguments == [{"rate": rate, "steps": 7, "inputs": None} for rate in (0.1, 0.2, 0.3)]
    assert len(set(scripts)) == len(scripts)


def test_instances_share_a_gang_in_which_each_has_its_own_devices_and_folder(instance: Any, ledger: Any) -> None:
    runs = [TaskRun.from_context(instance(map_index)[1]) for map_index in range(3)]
    assert len({run.gang(ledger.ledger_id) for run in runs}) == 1
    assert len({run.view.ti_id for run in runs}) == len(runs)
    plan = instance(2)[0]._plan(instance(2)[1])
    assert not plan.is_gang, "one that fails must not end the others"


def test_where_airflow_cannot_be_asked_a_mapped_function_is_rendered_all_the_same(
    instance: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("airflow.sdk.execution_time.task_runner.SUPERVISOR_COMMS")
    operator, _ = instance(1)
    assert (operator.replica, operator.count) == (1, 2)
    assert operator.environment == {"PLACE": "1 of 2"}


def test_an_argument_that_is_no_plain_value_is_refused(operator: Any) -> None:
    operator.op_kwargs = {"rate": object()}
    with pytest.raises(DeclarationError, match="an argument of fit is no plain JSON value"):
        operator._script()


@pytest.mark.parametrize("found", [3, ["mae"], {"mae": "low"}, "text"])
def test_what_is_no_metric_is_refused(found: Any) -> None:
    def fit():
        return found

    with pytest.raises(TypeError, match="fit returned"):
        runtime.call(fit, "[]", "{}")


def test_a_function_that_returns_nothing_reports_nothing(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_TF_METRICS_FILE", str(tmp_path / "metrics"))
    runtime.call(lambda *_: None, "[1]", "{}")
    assert not (tmp_path / "metrics").exists()


def test_the_script_is_written_once_for_the_same_function_and_arguments(
    operator: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_tf.operators import decorated as module

    ti = SimpleNamespace(
        dag_id="functions", run_id="run", task_id="fit", id="1", try_number=1, max_tries=0, map_index=-1
    )
    context: Any = {"ti": ti, "task": operator, "dag": operator.dag}
    monkeypatch.setattr(module, "load_settings", lambda: settings)
    monkeypatch.setattr("airflow_tf.operators.launching.load_settings", lambda: settings)
    operator.dag.fileloc = __file__
    operator._unrendered = {}
    launches = [operator._launch(context, ConfigContext(), 0) for _ in range(2)]
    assert launches[0].entrypoint == launches[1].entrypoint
    assert launches[0].code_folder == __file__.rpartition("/")[0]
    [script] = (settings.home / "runs").rglob("*.py")
    assert script.read_text() == operator._script()
    operator.op_kwargs = {"rate": 9.0, "inputs": None}
    assert operator._launch(context, ConfigContext(), 0).entrypoint != str(script)
