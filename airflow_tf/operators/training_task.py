"""What the task of a training was declared with, as the tasks behind it ask."""

from __future__ import annotations

from typing import Any

from airflow_tf.core.errors import AirflowTfError
from airflow_tf.core.units import parse_seconds

_DEFAULT_GRACE_SECONDS = 30.0
_LONG_GRACE_SECONDS = 300.0


def argument(dag: Any, task_id: str, name: str, default: Any) -> Any:  # noqa: ANN401 (Airflow exports no class for parsed DAGs)
    """Return an argument of a training task, as it was given."""
    task = dag.get_task(task_id)
    given = task.partial_kwargs.get(name) if task.is_mapped else getattr(task, name, None)
    return default if given is None else given


def is_warm(dag: Any, task_id: str) -> bool | None:  # noqa: ANN401 (Airflow exports no class for parsed DAGs)
    """Tell whether all replicas began with one checkpoint, None where that is not known."""
    initial = argument(dag, task_id, "initial_checkpoint", None)
    return True if initial and not argument(dag, task_id, "allow_from_scratch", None) else None


def kill_grace_seconds(dag: Any, task_id: str) -> float:  # noqa: ANN401 (Airflow exports no class for parsed DAGs)
    """Return the kill grace of a training task; where it is a template, a long one."""
    try:
        return parse_seconds(argument(dag, task_id, "kill_grace_seconds", _DEFAULT_GRACE_SECONDS))
    except AirflowTfError:
        return _LONG_GRACE_SECONDS
