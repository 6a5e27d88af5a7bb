"""A DAG that stands for a broken declaration, so that its errors are seen where its user looks for the DAG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowFailException


class BrokenDeclarationOperator(BaseOperator):
    """Fail with the errors of a declaration.

    :param errors: the text to fail with.
    """

    def __init__(self, *, errors: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.errors = errors

    def execute(self, context: Mapping[str, Any]) -> None:  # noqa: ARG002  given by Airflow
        """Fail; another try cannot help.

        :raises AirflowFailException: always.
        """
        raise AirflowFailException(self.errors)


def placeholder_dag(dag_id: str, errors: str) -> DAG:
    """Return a DAG without schedule, tagged ``broken``, whose documentation and only task show ``errors``."""
    listed = "".join(f"- {line}\n" for line in errors.splitlines())
    doc = f"The declaration of this DAG is broken. Correct it, and the DAG appears:\n\n{listed}"
    with DAG(dag_id, schedule=None, tags=["broken"], description="A broken declaration", doc_md=doc) as dag:
        BrokenDeclarationOperator(task_id="broken_declaration", errors=errors)
    return dag
