"""What runs in the training process: TensorFlow yes, Airflow never.

``context()`` and ``strategy()`` are for users' programs; neither is needed by a program that reads its environment.
``csv_dataset``, ``records_dataset``, ``convert_csv`` and ``blocks_dataset`` read staged files; their modules import
TensorFlow and are loaded when they are first asked for. ``on_stop``, ``stop_requested``, ``SaveOnStop`` and
``StopHook`` use the time that a stop leaves for one more checkpoint.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from airflow_tf.runtime.context import RunContext, context
from airflow_tf.runtime.stopping import STOPPED, on_stop, stop_requested
from airflow_tf.runtime.strategies import strategy
from airflow_tf.runtime.strategies.limits import Limits

if TYPE_CHECKING:
    from airflow_tf.runtime.reading import csv_dataset, records_dataset
    from airflow_tf.runtime.reading_blocks import blocks_dataset, convert_csv
    from airflow_tf.runtime.stop_hooks import SaveOnStop, StopHook

__all__ = [
    "STOPPED",
    "Limits",
    "RunContext",
    "SaveOnStop",
    "StopHook",
    "blocks_dataset",
    "context",
    "convert_csv",
    "csv_dataset",
    "on_stop",
    "records_dataset",
    "stop_requested",
    "strategy",
]

_LATE = {
    "csv_dataset": "reading",
    "records_dataset": "reading",
    "blocks_dataset": "reading_blocks",
    "convert_csv": "reading_blocks",
    "SaveOnStop": "stop_hooks",
    "StopHook": "stop_hooks",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 -- whatever the module has
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATE[name]}"), name)
