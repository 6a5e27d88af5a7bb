"""Parse a folder of declarations, beside the same DAGs made in a Python loop and by dag-factory.

Each run is a process of its own, measured from after the imports and a first DAG and asset, for which Airflow imports
more: all DAGs of the folder, then the only one that Airflow wants when it starts a task. dag-factory is run where it is
installed; its DAGs have the same operators and arguments. Memory is the peak of the process, imports included. Last,
all of the command ``airflow tf validate`` over the folder, beside the least that a command of Airflow takes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from harness import SHOWN, Row, arguments, pairs, report

_TASKS = 5

_DECLARATION = """\
dag_id: parse_{number}
params: {{epochs: {{type: integer, default: 3}}}}
inputs:
  train: {{uri: "hdfs://namenode:8020/data/{number}/*.csv", shard: files}}
devices: {{count: 2, kind: cpu}}
train:
  entrypoint: train.py
  arguments: {{epochs: "{{{{ params.epochs }}}}"}}
  session_config: {{allow_soft_placement: true, gpu_options: {{allow_growth: true}}}}
checkpoints: {{aggregate: average, publish: "hdfs://namenode:8020/models/{number}"}}
"""

_MEASURE = """
import json, resource, sys, time
folder, count, wanted = sys.argv[1], int(sys.argv[2]), sys.argv[3]
{imports}
DAG("first", schedule=None, params={{"first": 1}}), Asset("hdfs://first:8020/first")
began, names = time.perf_counter(), {{"__file__": folder + "/loader.py", "__name__": "loader"}}
{parse}
seconds = time.perf_counter() - began
found = [dag for dag in names.values() if isinstance(dag, DAG)]
assert len(found) == (1 if wanted else count), len(found)
assert all(len(dag.task_dict) == {tasks} for dag in found)
print(json.dumps({{"seconds": seconds, "MB RSS": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}}))
"""

_IMPORTS = """
from airflow.sdk import DAG, Asset, TaskGroup
from airflow_tf.operators.checkpoint import CheckpointAggregateOperator, CheckpointPublishOperator
from airflow_tf.operators.train import TensorFlowTrainOperator
from airflow_tf.sensors.devices import DeviceAvailabilitySensor
from airflow_tf.transfers.hdfs_to_local import HdfsToLocalOperator
"""
_OURS = (
    "from airflow.sdk import DAG, Asset\nfrom airflow_tf.pipeline import load_dags",
    'load_dags(names, folder + "/loader.py")',
)
_LOOP = (
    _IMPORTS,
    """
for number in range(count):
    uri = f"hdfs://namenode:8020/data/{number}/*.csv"
    with DAG(f"parse_{number}", schedule=None, params={"epochs": 3}) as dag:
        with TaskGroup("stage") as stage:
            HdfsToLocalOperator(task_id="train", source=uri, input_name="train", replicas=2)
        reserve = DeviceAvailabilitySensor(task_id="reserve", for_task="train", count=2, kind="cpu", mode="reschedule")
        train = TensorFlowTrainOperator.partial(
            task_id="train", count=2, entrypoint=folder + "/train.py", kind="cpu", retries=2,
            arguments={"epochs": "{{ params.epochs }}"}, inputs={"train": {"source": uri, "shard": "files"}},
            session_config={"allow_soft_placement": True, "gpu_options": {"allow_growth": True}},
        ).expand(replica=[0, 1])
        aggregate = CheckpointAggregateOperator(task_id="aggregate", from_task="train", method="average")
        base = f"hdfs://namenode:8020/models/{number}"
        publish = CheckpointPublishOperator(
            task_id="publish", from_task="aggregate", destination=base, outlets=[Asset(base)]
        )
        stage >> reserve >> train >> aggregate >> publish
    names[f"dag {number}"] = dag
""",
)
_FACTORY = (
    f"{_IMPORTS}\nfrom dagfactory import load_yaml_dags",
    'load_yaml_dags(globals_dict=names, config_filepath=folder + "/factory.yml")',
)


def main() -> None:
    """Measure and report."""
    options = arguments(__doc__ or "")
    count, turns = (20, 2) if options.quick else (200, 5)
    with tempfile.TemporaryDirectory() as folder:
        report(measure(Path(folder), count, turns), options.json)


def measure(folder: Path, count: int, turns: int) -> list[Row]:
    """Return the rows for ``count`` declarations that are written into ``folder``."""
    write(folder, count)
    case = f"{count} declarations"
    ours, loop = pairs(turns, lambda: run(folder, count, _OURS), lambda: run(folder, count, _LOOP))
    one, _ = pairs(turns, lambda: run(folder, count, _OURS, f"parse_{count // 2}"), lambda: {"seconds": 0.0})
    checked, version = pairs(turns, lambda: validate(folder, count), lambda: airflow(folder, "version"))
    has_factory = importlib.util.find_spec("dagfactory") is not None
    factory = pairs(turns, dict, lambda: run(folder, count, _FACTORY))[1] if has_factory else {}
    return [
        Row(case, "seconds", ours["seconds"], loop["seconds"], "Python loop", "ratio <= 1.8"),
        Row(case, "seconds", ours["seconds"], factory.get("seconds"), "dag-factory", "ratio <= 0.4"),
        Row(case, "MB RSS", ours["MB RSS"], loop["MB RSS"], "Python loop", SHOWN),
        Row(case, "MB RSS", ours["MB RSS"], factory.get("MB RSS"), "dag-factory", "ratio <= 1"),
        Row(f"one of {count}", "ms", one["seconds"] * 1000, ours["seconds"] * 1000, "all of them", "ours <= 50"),
        Row(f"{count} validated", "seconds", checked["seconds"], version["seconds"], "airflow version", "ratio <= 2.0"),
    ]


def write(folder: Path, count: int) -> None:
    """Write the declarations, and one file with the same DAGs for dag-factory."""
    (folder / "train.py").touch()
    for number in range(count):
        (folder / f"parse_{number}.tf.yaml").write_text(_DECLARATION.format(number=number))
    factory = {f"parse_{number}": _factory_dag(number) for number in range(count)}
    (folder / "factory.yml").write_text(yaml.safe_dump(factory))


def _factory_dag(number: int) -> dict[str, object]:
    uri, base = f"hdfs://namenode:8020/data/{number}/*.csv", f"hdfs://namenode:8020/models/{number}"
    train = {
        "operator": "airflow_tf.operators.train.TensorFlowTrainOperator",
        "partial": {
            "count": 2, "entrypoint": "train.py", "kind": "cpu", "retries": 2,
            "arguments": {"epochs": "{{ params.epochs }}"}, "inputs": {"train": {"source": uri, "shard": "files"}},
            "session_config": {"allow_soft_placement": True, "gpu_options": {"allow_growth": True}},
        },
        "expand": {"replica": [0, 1]},
        "dependencies": ["reserve"],
    }  # fmt: skip
    tasks = {
        "stage": {
            "operator": "airflow_tf.transfers.hdfs_to_local.HdfsToLocalOperator",
            "source": uri, "input_name": "train", "replicas": 2,
        },
        "reserve": {
            "operator": "airflow_tf.sensors.devices.DeviceAvailabilitySensor",
            "for_task": "train", "count": 2, "kind": "cpu", "mode": "reschedule", "dependencies": ["stage"],
        },
        "train": train,
        "aggregate": {
            "operator": "airflow_tf.operators.checkpoint.CheckpointAggregateOperator",
            "from_task": "train", "method": "average", "dependencies": ["train"],
        },
        "publish": {
            "operator": "airflow_tf.operators.checkpoint.CheckpointPublishOperator",
            "from_task": "aggregate", "destination": base, "outlets": [base], "dependencies": ["aggregate"],
        },
    }  # fmt: skip
    return {"default_args": {"start_date": "2026-01-01"}, "schedule": None, "params": {"epochs": 3}, "tasks": tasks}


def run(folder: Path, count: int, way: tuple[str, str], wanted: str = "") -> dict[str, float]:
    """Parse in a process of its own; ``wanted`` is the only DAG that Airflow asks for."""
    program = _MEASURE.format(imports=way[0], parse=way[1], tasks=_TASKS)
    variables = {"AIRFLOW_HOME": str(folder / "home")} | ({"_AIRFLOW_PARSING_CONTEXT_DAG_ID": wanted} if wanted else {})
    command = [sys.executable, "-c", program, str(folder), str(count), wanted]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def validate(folder: Path, count: int) -> dict[str, float]:
    """Let the command validate all declarations."""
    return airflow(folder, "tf", "validate", *(str(folder / f"parse_{number}.tf.yaml") for number in range(count)))


def airflow(folder: Path, *words: str) -> dict[str, float]:
    """Run a command of Airflow from start to end."""
    environment = os.environ | {"AIRFLOW_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "airflow", *words]
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return {"seconds": seconds}


if __name__ == "__main__":
    main()
