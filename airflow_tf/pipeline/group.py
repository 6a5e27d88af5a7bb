"""The tasks of a declaration as a group in a DAG that is written by hand: the same tasks as in a DAG of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, TaskGroup

from airflow_tf.core.errors import DeclarationError
from airflow_tf.pipeline.build import add_tasks, as_markdown, task_defaults
from airflow_tf.pipeline.dag_fields import to_param
from airflow_tf.pipeline.declaration import Loaded, load_declaration


def load_task_group(file: Path, group_id: str | None = None, **kwargs: Any) -> TaskGroup:
    """Read the declaration ``file`` and build its tasks as a group in the current DAG (:func:`build_task_group`).

    :raises InvalidDeclarationError: with every problem of the file.
    """
    return build_task_group(load_declaration(file), group_id, **kwargs)


def build_task_group(loaded: Loaded, group_id: str | None = None, **kwargs: Any) -> TaskGroup:
    """Build the tasks of a declaration as a group in the current DAG; their ids begin with that of the group.

    What concerns a DAG as a whole (``schedule``, ``start_date``, ``catchup``, ``max_active_runs``, ``tags``, callbacks
    of the run) is the business of the DAG that the group is in. Params that the declaration has become the DAG's.

    :param group_id: of the group, by default the declaration's ``dag_id``, its dots as underscores.
    :param kwargs: more for :class:`airflow.sdk.TaskGroup`.
    :raises DeclarationError: if the DAG has another param of the same name.
    """
    declaration = loaded.declaration
    given = {"default_args": task_defaults(declaration), "doc_md": as_markdown(loaded.document.text)} | kwargs
    with TaskGroup(group_id or declaration.dag_id.replace(".", "_"), **given) as group:
        _add_params(group.dag, loaded)
        add_tasks(loaded, group.dag, group)
    return group


def _add_params(dag: DAG, loaded: Loaded) -> None:
    """Give the DAG the declared params.

    :raises DeclarationError: if it has another one of the same name.
    """
    for name, value in loaded.declaration.params.items():
        param = to_param(value)
        param.source = "dag"
        if name in dag.params and not _are_alike(dag.params.get_param(name), param):
            raise DeclarationError(
                f"{loaded.document.file}: params.{name} is not what DAG {dag.dag_id} already has under this name",
                "the params of a group are those of its DAG",
                "Give both the same definition, or one of them another name.",
            )
        dag.params[name] = param


def _are_alike(there: Param, param: Param) -> bool:
    """Tell whether the DAG's param is the declared one, or the same value without a schema."""
    same_value = (there.value, there.description) == (param.value, param.description)
    return same_value and there.schema in ({}, param.schema)
