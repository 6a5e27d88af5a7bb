"""``towers``: one process, one copy of the model on each of its devices."""

from __future__ import annotations

import importlib
from typing import Any

from airflow_tf.core.errors import DeclarationError
from airflow_tf.runtime.strategies.limits import Limits


def make(_: Limits) -> Any:  # noqa: ANN401 (a tf.distribute.Strategy; TensorFlow has no types)
    """Return a MirroredStrategy over all GPUs of this process, or over its logical CPU devices where it has none.

    One device needs no copies: TensorFlow's default strategy.

    :raises DeclarationError: if TensorFlow left devices out.
    """
    tf = importlib.import_module("tensorflow")
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if len(devices) == 1:
        return tf.distribute.get_strategy()
    strategy = tf.distribute.MirroredStrategy([device.name for device in devices])
    if strategy.num_replicas_in_sync != len(devices):
        raise DeclarationError(f"only {strategy.num_replicas_in_sync} of {len(devices)} devices train in sync")
    return strategy
