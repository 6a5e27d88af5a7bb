"""Session configs that an operator is given as files: rendered for each replica, errors with the file's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from airflow.sdk import DAG
from jinja2.nativetypes import NativeEnvironment

from airflow_tf.core.errors import SessionConfigError
from airflow_tf.core.session_config.files import names_file
from airflow_tf.operators.evaluate import CheckpointEvaluateOperator
from airflow_tf.operators.launching import LaunchingOperator, config_context
from airflow_tf.operators.train import TensorFlowTrainOperator

YAML = """
{% set threads = params.threads %}
intra_op_parallelism_threads: {{ threads }}
gpu_options: {visible_device_list: "{{ replica.index }}"}
{% if replica.index == 1 %}
log_device_placement: true
{% endif %}
ps: {device_count: {GPU: 0}}
"""
PROTO = """
intra_op_parallelism_threads: {{ params.threads }}  # of each replica
gpu_options { visible_device_list: "{{ replica.index }}" }
{% if replica.index == 1 %}log_device_placement: true{% endif %}
"""
JSON = json.dumps(
    {
        "intra_op_parallelism_threads": "{{ params.threads }}",
        "gpu_options": {"visible_device_list": "{{ replica.index }}"},
    }
)
GANG: dict[str, Any] = {"strategy": "v1_cluster", "roles": {"worker": 2, "ps": 1}, "count": 3}


def rendered(file: Path, environment: jinja2.Environment, replica: int = 0, **fields: Any) -> Any:
    """Render as a task instance does, and check the config of ``replica``."""
    with DAG("files", schedule=None):
        task: Any = TensorFlowTrainOperator(task_id="train", entrypoint="train.py", replica=0, **fields)
    task.session_config = str(file) if file.is_absolute() else file.name
    task._variables = lambda _context, number: {"replica": {"index": number, "count": 3}, "inputs": {}}
    context: Any = {"params": {"threads": 3}, "dag": task.dag}
    fields_of_it = TensorFlowTrainOperator.template_fields
    LaunchingOperator._do_render_template_fields(task, task, fields_of_it, context, environment, set())
    value = task._rendered_for(context, replica)["session_config"]
    devices = config_context(task.device_request(), [], "v1", task.strategy)
    return task._session_config(value, devices, context, replica).config


@pytest.mark.parametrize(
    ("name", "text"),
    [("session.yaml", YAML), ("session.yml.j2", YAML), ("session.pbtxt", PROTO), ("session.pbtxt.j2", PROTO),
     ("session.json", JSON), ("session.j2", PROTO), ("session.jinja2", YAML)],
)  # fmt: skip
@pytest.mark.parametrize("make", [jinja2.Environment, NativeEnvironment])
@pytest.mark.parametrize("absolute", [True, False])
def test_a_file_is_rendered_for_each_replica_and_found_beside_the_dag(
    tmp_path: Path, name: str, text: str, make: type[jinja2.Environment], absolute: bool
) -> None:
    file = tmp_path / name
    file.write_text(text)
    environment = make(loader=jinja2.FileSystemLoader(tmp_path))
    fields = GANG if "ps:" in text else {"count": 3}
    for replica in (0, 1):
        config = rendered(file if absolute else Path(name), environment, replica, kind="gpu", per_replica=2, **fields)
        assert config["intra_op_parallelism_threads"] == 3
        assert config["gpu_options"]["visible_device_list"] == str(replica)
        assert ("log_device_placement" in config) == (replica == 1 and "{% if" in text)
    if "ps:" in text:
        assert rendered(file, environment, 2, kind="gpu", per_replica=3, **fields)["device_count"] == {"GPU": 0}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "allow_growth: true", "a.yaml: session_config.allow_growth: unknown field of ConfigProto"),
        ("a.yaml", "allow_soft_placement: 3", "a.yaml: session_config.allow_soft_placement: must be true or false"),
        ("a.yaml", "device_count:\n  CPU: 1\n  CPU: 2", "a.yaml: session_config: line 2, column 3: CPU is given twice"),
        ("a.json", '{"allow_soft_placement": true', "a.json: session_config: line 1, column 30"),
        ("a.pbtxt", "\ngpu_options { alow_growth: true }", "a.pbtxt: session_config.gpu_options.alow_growth: line 2, column 15"),
        ("a.pbtxt", "ps { }", "a.pbtxt: session_config.ps: line 1, column 1"),
        ("a.yaml", "x: 1\n{% if %}", "a.yaml: line 2: "),
        ("a.yaml", "allow_soft_placement: {{ params.missing }}", "a.yaml: 'dict object' has no attribute 'missing'"),
        ("a.yaml", "ps: {}", "a.yaml: session_config.ps: these replicas form no cluster"),
        ("a.toml.j2", "", "a.toml.j2: its ending .toml names no known form"),
        ("missing.yaml", None, "missing.yaml: there is no such file beside the DAG file"),
    ],
)  # fmt: skip
def test_an_error_names_the_file_and_the_path(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(tmp_path), undefined=jinja2.StrictUndefined)
    with pytest.raises(SessionConfigError) as caught:
        rendered(Path(name), environment, count=1)
    assert said in str(caught.value)


def test_only_a_session_config_may_be_a_file() -> None:
    """Of inputs and arguments the text counts, whatever its ending."""
    dag: Any
    with DAG("files", schedule=None) as dag:
        task: Any = TensorFlowTrainOperator(
            task_id="train", entrypoint="train.py", replica=0, count=1, arguments={"schema": "columns.json"}
        )
    task.inputs = {"labels": {"source": "hdfs://h/labels.json"}}
    dag.resolve_template_files()
    task._variables = lambda *_: {}
    context: Any = {"dag": dag}
    task._do_render_template_fields(task, task.template_fields, context, dag.get_template_env(), set())
    assert task.arguments == {"schema": "columns.json"}
    assert task.inputs == {"labels": {"source": "hdfs://h/labels.json"}}
    assert not names_file("{{ x }}.json")
    assert not names_file("a: 1\nb.json")


def test_an_evaluation_gets_what_all_replicas_get() -> None:
    dag: Any
    with DAG("files", schedule=None) as dag:
        task = CheckpointEvaluateOperator(task_id="evaluate", entrypoint="evaluate.py")
    context: Any = {"dag": dag}
    devices = config_context(task.device_request(), [], "v1", "independent")
    config = {"intra_op_parallelism_threads": 2, "ps": {"intra_op_parallelism_threads": 1}}
    assert task._session_config(config, devices, context, 0).config == {"intra_op_parallelism_threads": 2}
