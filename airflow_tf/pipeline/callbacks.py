"""Who is told what becomes of a run and of its tasks, as Airflow takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_tf.pipeline.called import NamedCallback
from airflow_tf.pipeline.models import CallbacksSpec, Declaration

_RUN = ("on_failure", "on_success")
_TASK = ("on_task_execute", "on_task_failure", "on_task_retry", "on_task_skipped", "on_task_success")


def run_callbacks(declaration: Declaration) -> dict[str, Any]:
    """Return what a DAG is given to tell how its runs ended."""
    return _callbacks(declaration.callbacks, {name: f"{name}_callback" for name in _RUN})


def task_callbacks(declaration: Declaration) -> dict[str, Any]:
    """Return what each task is given to tell what becomes of it."""
    return _callbacks(declaration.callbacks, {name: f"{name.replace('task_', '')}_callback" for name in _TASK})


def _callbacks(spec: CallbacksSpec, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        airflows: [NamedCallback(each.call, each.arguments) for each in getattr(spec, ours)]
        for ours, airflows in names.items()
        if getattr(spec, ours)
    }
