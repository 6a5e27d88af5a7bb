"""What a training task was given and which replicas it is mapped over, read from the parsed DAG."""

from __future__ import annotations

from typing import Any

from airflow_tf.core.errors import DeclarationError


def argument_of(dag: Any, task_id: str, name: str, default: Any) -> Any:  # noqa: ANN401 (Airflow exports no class for parsed DAGs)
    """Return an argument of a training task, as it was given."""
    task = dag.get_task(task_id)
    given = task.partial_kwargs.get(name) if task.is_mapped else getattr(task, name, None)
    return default if given is None else given


def refuse_mapped_group(task: Any) -> None:  # noqa: ANN401 (Airflow's operator)
    """Refuse a place in a mapped task group: every instance of the group would be the same replica of one gang.

    :raises DeclarationError: naming the group.
    """
    for group in task.iter_mapped_task_groups():
        raise DeclarationError(
            f"task {task.task_id!r} cannot run in the mapped task group {group.group_id!r}",
            "all instances of the group would be the same replica of one training",
            "Use @task.tensorflow, whose instances are replicas of their own, or a sweep, or map the operator itself.",
        )


def literal_replicas(dag: Any, task_id: str) -> list[int]:  # noqa: ANN401 (Airflow exports no class for parsed DAGs)
    """Return the replica numbers that a task is mapped over, sorted; those of an unmapped task are its own, or 0.

    :raises DeclarationError: if there is no such task, or its numbers are not literals.
    """
    return sorted(_numbers(dag, task_id))


def instance_names(dag: Any, task_id: str) -> dict[int, str]:  # noqa: ANN401 (Airflow exports no class for parsed DAGs)
    """Return replica -> name of its task instance, as Airflow's table of states has it.

    :raises DeclarationError: if there is no such task, or its numbers are not literals.
    """
    numbers = _numbers(dag, task_id)
    if not dag.get_task(task_id).is_mapped:
        return {numbers[0]: task_id}
    return {number: f"{task_id}_{index}" for index, number in enumerate(numbers)}


def _numbers(dag: Any, task_id: str) -> list[int]:  # noqa: ANN401 (Airflow exports no class for parsed DAGs)
    """Return the replica numbers by map index."""
    if not dag.has_task(task_id):
        known = ", ".join(sorted(dag.task_ids))
        raise DeclarationError(f"DAG {dag.dag_id} has no task {task_id!r}", todo=f"Use one of: {known}.")
    task = dag.get_task(task_id)
    if not task.is_mapped:
        return [int(getattr(task, "replica", 0))]
    given = task.expand_input.value
    if isinstance(given, dict):
        numbers = given.get("replica")
    else:
        numbers = [entry.get("replica") for entry in given] if isinstance(given, list | tuple) else None
    if not isinstance(numbers, list | tuple) or not all(isinstance(number, int) for number in numbers):
        raise DeclarationError(
            f"the replicas of task {task_id} are not known before it runs",
            "it is not mapped over a literal list of replica numbers",
            "Give count, or write .expand(replica=[0, 1, 2]).",
        )
    return list(numbers)
