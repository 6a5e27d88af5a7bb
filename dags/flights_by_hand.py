"""The DAG of flights.tf.yaml, written by hand with the operators: the same tasks, with all of Airflow around them."""

from airflow.sdk import DAG

from airflow_tf.operators.checkpoint import CheckpointAggregateOperator, CheckpointPublishOperator
from airflow_tf.operators.evaluate import CheckpointEvaluateOperator
from airflow_tf.operators.train import TensorFlowTrainOperator
from airflow_tf.sensors.devices import DeviceAvailabilitySensor
from airflow_tf.transfers.hdfs_to_local import HdfsToLocalOperator

INPUTS = {
    "train": {"source": "{{ var.value.flights }}/train/*.csv", "shard": "files"},
    "holdout": {"source": "{{ var.value.flights }}/holdout/*.csv"},
}

with DAG("flights_by_hand", schedule=None, params={"epochs": 3}, tags=["example", "airflow_tf"]):
    # [START operators]
    stage = [
        HdfsToLocalOperator(task_id=f"stage_{name}", source=given["source"], input_name=name)
        for name, given in INPUTS.items()
    ]
    reserve = DeviceAvailabilitySensor(task_id="reserve", for_task="train", kind="cpu", mode="reschedule")
    train = TensorFlowTrainOperator.partial(
        task_id="train",
        entrypoint="flights/train.py",
        arguments={"epochs": "{{ params.epochs }}"},
        session_config={"allow_soft_placement": True, "intra_op_parallelism_threads": 1},
        inputs=INPUTS,
        kind="cpu",
        retries=2,
    ).expand(replica=[0, 1])  # a list of numbers: Airflow would store a range as text
    aggregate = CheckpointAggregateOperator(task_id="aggregate", from_task="train")
    evaluate = CheckpointEvaluateOperator(
        task_id="evaluate", from_task="aggregate", entrypoint="flights/evaluate.py", inputs=INPUTS, kind="cpu"
    )
    publish = CheckpointPublishOperator(
        task_id="publish",
        from_task="aggregate",
        evaluation_task="evaluate",
        metric="mae",
        destination="{{ var.value.flights }}/models",
    )
    stage >> reserve >> train >> aggregate >> evaluate >> publish
    # [END operators]
