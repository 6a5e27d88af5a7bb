"""A person decides, in Airflow's UI or over its API, whether what was trained is published."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator

from airflow_tf.pipeline.models import ApprovalSpec, Declaration


def approval_task(declaration: Declaration, approval: ApprovalSpec, evaluation_task: str) -> ApprovalOperator:
    """Build the task that waits for the answer, holding no slot; a rejection skips the publication.

    :param evaluation_task: whose measurements are shown with the question, if the declaration has an evaluation.
    """
    users = [{"id": name, "name": name} for name in approval.users or ()]
    given: dict[str, Any] = {"assigned_users": users} if users else {}
    return ApprovalOperator(
        task_id="approve",
        subject=approval.subject or f"Publish the model of {declaration.dag_id}, run {{{{ run_id }}}}?",
        body=approval.body or _measurements(declaration, evaluation_task),
        response_timeout=approval.timeout,
        **given,
    )


def _measurements(declaration: Declaration, evaluation_task: str) -> str | None:
    """Return a template that shows what the evaluation measured, as a table."""
    if declaration.evaluate is None:
        return None
    metric = declaration.evaluate.metric
    rows = "".join(
        f"{{% for name, row in (ti.xcom_pull(task_ids={evaluation_task!r}) or {{}}).get({kind!r}, {{}}).items() %}}"
        f"| {{{{ name }}}} | {{{{ row.get({metric!r}) }}}} |\n{{% endfor %}}"
        for kind in ("candidates", "baselines")
    )
    return f"| candidate | {metric} |\n|---|---|\n{rows}"
