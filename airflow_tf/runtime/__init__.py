"""What runs in the training process: TensorFlow yes, Airflow never.

``context()`` and ``strategy()`` are for users' programs; neither is needed by a program that reads its environment.
``csv_dataset``, ``records_dataset``, ``convert_csv`` and ``blocks_dataset`` read staged files; their modules import
TensorFlow and are loaded when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from airflow_tf.runtime.context import RunContext, context
from airflow_tf.runtime.strategies import strategy
from airflow_tf.runtime.strategies.limits import Limits

if TYPE_CHECKING:
    from airflow_tf.runtime.reading import csv_dataset, records_dataset
    from airflow_tf.runtime.reading_blocks import blocks_dataset, convert_csv

__all__ = [
    "Limits",
    "RunContext",
    "blocks_dataset",
    "context",
    "convert_csv",
    "csv_dataset",
    "records_dataset",
    "strategy",
]

_LATE = {
    "csv_dataset": "reading",
    "records_dataset": "reading",
    "blocks_dataset": "reading_blocks",
    "convert_csv": "reading_blocks",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 -- whatever the module has
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATE[name]}"), name)
