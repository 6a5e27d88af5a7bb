"""``sync``: every replica computes gradients of its part of the batch, all apply the sum: one model."""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.launch import CLUSTER_VARIABLE
from airflow_tf.runtime import keras_fit
from airflow_tf.runtime.strategies.limits import Limits


def make(limits: Limits) -> Any:  # noqa: ANN401 (a tf.distribute.Strategy; TensorFlow has no types)
    """Join the cluster and return a MultiWorkerMirroredStrategy in which every replica takes part.

    :raises DeclarationError: if TensorFlow left replicas out.
    """
    tf = importlib.import_module("tensorflow")
    cluster = json.loads(os.environ[CLUSTER_VARIABLE])["cluster"]
    jobs = {role: len(cluster[role]) for role in ("chief", "worker") if role in cluster}
    gpus = sum(_logical(tf, gpu) for gpu in tf.config.get_visible_devices("GPU"))
    _limit_waiting(jobs, limits)
    communication = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        timeout_seconds=limits.collective_seconds, implementation=communication.NCCL if gpus else communication.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    expected = sum(jobs.values()) * max(gpus, 1)
    if strategy.num_replicas_in_sync != expected:
        why = f"{sum(jobs.values())} processes with {max(gpus, 1)} devices each are {expected}"
        raise DeclarationError(f"only {strategy.num_replicas_in_sync} replicas train in sync", why)
    keras_fit.allow()
    return strategy


def _logical(tf: Any, gpu: Any) -> int:  # noqa: ANN401 (TensorFlow has no types)
    return len(tf.config.get_logical_device_configuration(gpu) or [None])


def _limit_waiting(jobs: dict[str, int], limits: Limits) -> None:
    """Let the coordination service give up on peers that never come, die or freeze.

    No public API sets this; the strategy keeps what it finds. Without the barrier the leader waits without end for
    peers that never come, with or without a register timeout.
    """
    context = importlib.import_module("tensorflow.python.eager.context").context()
    proto = importlib.import_module("tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2")
    heartbeat = int(limits.heartbeat_seconds * 1000)
    context.configure_coordination_service(
        "standalone",
        service_leader=f"/job:{next(iter(jobs))}/replica:0/task:0",
        heartbeat_timeout_in_ms=heartbeat,
        shutdown_barrier_timeout_in_ms=heartbeat,
        cluster_register_timeout_in_ms=int(limits.register_seconds * 1000),
        coordinated_jobs=[proto.CoordinatedJob(name=role, num_tasks=number) for role, number in jobs.items()],
    )
    context._coordination_service_config.cluster_register_with_barrier = True  # noqa: SLF001 (no public way)
