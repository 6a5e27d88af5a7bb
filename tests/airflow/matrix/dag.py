"""The DAGs of the kill matrix: sensor, two replicas, aggregation; where they wait and how they start differs."""

import datetime as dt
import os

from airflow.sdk import DAG, Param

from airflow_tf.operators.checkpoint import CheckpointAggregateOperator
from airflow_tf.operators.train import TensorFlowTrainOperator
from airflow_tf.sensors.devices import DeviceAvailabilitySensor

GATES = os.environ["AIRFLOW_TF_TEST_HOME"] + "/gates/{{ run_id }}"


WAITERS_POOL = "waiters"  # of two slots


def make(dag_id, pool="default_pool", method="average", train=None, **sensor):
    params = {"kind": "cpu", "names": "*", "grace": Param(10, type="number")}
    defaults = {"retries": 40, "retry_delay": dt.timedelta(seconds=3), "pool": pool}
    devices = {"kind": "{{ params.kind }}", "names": "{{ params.names }}"}
    with DAG(dag_id, schedule=None, params=params, default_args=defaults, max_active_runs=64) as dag:
        reserve = DeviceAvailabilitySensor(
            task_id="reserve", for_task="train", timeout=600, **devices, **({"poke_interval": 1} | sensor)
        )
        train = TensorFlowTrainOperator.partial(
            task_id="train",
            entrypoint="matrix/program.py",
            environment={"MATRIX_GATES": GATES},
            kill_grace_seconds="{{ params.grace }}",
            restarts=1,
            device_timeout="10m",
            **devices,
            **({"start_method": "spawn"} | (train or {})),
        ).expand(replica=[0, 1])
        reserve >> train >> CheckpointAggregateOperator(task_id="aggregate", method=method)
    return dag


matrix = make("matrix", mode="poke")
matrix_waiters = make("matrix_waiters", pool=WAITERS_POOL, mode="reschedule", poke_interval=10)
matrix_zygote = make("matrix_zygote", train={"start_method": "zygote"}, mode="poke")
matrix_gang = make("matrix_gang", method="chief", train={"strategy": "sync"}, mode="poke")
matrix_deferred = make("matrix_deferred", train={"deferrable": True}, deferrable=True)
