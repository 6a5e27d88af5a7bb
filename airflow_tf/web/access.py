"""Who may read what: the only module that knows Airflow's API server.

Airflow protects nothing of a plugin's application by itself: every route needs one of these dependencies.
"""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import (
    GetUserDep,
    get_user,
    requires_access_dag,
    requires_access_view,
)
from fastapi import Depends

SIGNED_IN = Depends(get_user)
"""Lets in whoever has signed in, others get 401."""

MAY_READ_CLUSTER = Depends(requires_access_view(AccessView.CLUSTER_ACTIVITY))
"""Lets in who may see what goes on in the installation as a whole."""

MAY_READ_TASKS = Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_INSTANCE))
"""Lets in who may read the task instances of the DAG that the route's ``dag_id`` names."""


def readable_dags(user: GetUserDep) -> set[str]:
    """Return the ids of the DAGs that the user may read."""
    return get_auth_manager().get_authorized_dag_ids(user=user, method="GET")


ReadableDags = Annotated[set[str], Depends(readable_dags)]
