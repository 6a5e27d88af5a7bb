"""Facts about the running task instance that Airflow knows and our layers below must be told."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow.configuration import conf

from airflow_tf.core.identity import GangKey, RunFolders, View
from airflow_tf.core.policy import orphan_grace_seconds
from airflow_tf.core.settings import Settings

HEALTH_TIMEOUT_SECONDS = 1.0

AWAY_SECONDS = 15.0
"""Shortest time for which a task gives its slot back, by a reschedule or a deferral.

One that is queued again before the scheduler has read how its last process ended is taken for killed: it loses its try.
"""

TEMPORARY_RUN_PREFIX = "__airflow_temporary_run_"
FINISHED = ("success", "failed", "skipped", "upstream_failed", "removed")
"""States of a task instance that nothing but a user ends."""

RUNNING, RESTARTING = "running", "restarting"

DATED = frozenset(
    {
        "data_interval_end", "data_interval_start", "ds", "ds_nodash", "logical_date", "prev_data_interval_end_success",
        "prev_data_interval_start_success", "ts", "ts_nodash", "ts_nodash_with_tz",
    }
)  # fmt: skip
"""Names for templates that a run without a logical date has not: one that assets have started, or the API."""

INSTEAD_OF_DATES = "Use run_id or dag_run.run_after, or give a default."

_UNDEFINED = re.compile(r"'(\w+)' is undefined")


def without_date(error: Exception) -> str:
    """Return why a template has failed and what to do, if it is for want of a logical date; else nothing."""
    found = _UNDEFINED.match(str(error))
    if found is None or found[1] not in DATED:
        return ""
    return f"This run has no logical date: assets have started it, or the API did so without one. {INSTEAD_OF_DATES}"


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One try of a task instance, reduced to what gangs need.

    ``in_process`` is True under ``airflow tasks test`` and ``airflow dags test``, where no executor holds a slot
    and the operator must wait by itself.
    """

    dag_id: str
    run_id: str
    task_id: str
    ti_id: str
    try_number: int
    max_tries: int
    retries: int
    retry_delay_seconds: float
    in_process: bool
    map_index: int = -1

    @classmethod
    def from_context(cls, context: Mapping[str, Any]) -> TaskRun:
        """Read a task's context."""
        ti, task = context["ti"], context["task"]
        return cls(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            ti_id=str(ti.id),
            try_number=ti.try_number,
            max_tries=ti.max_tries,
            retries=task.retries or 0,
            retry_delay_seconds=task.retry_delay.total_seconds(),
            in_process=runs_in_process(),
            map_index=-1 if ti.map_index is None else ti.map_index,
        )

    @property
    def instance(self) -> str:
        """Name of this task instance in :func:`task_states`."""
        return instance_name(self.task_id, self.map_index)

    @property
    def view(self) -> View:
        """This try as a view of a replica."""
        return View(self.ti_id, self.try_number, max(self.max_tries - self.retries + 1, 1))

    @property
    def is_alone(self) -> bool:
        """Tell whether no other task instance of this run will ever come: ``tasks test`` without a run id."""
        return self.run_id.startswith(TEMPORARY_RUN_PREFIX)

    @property
    def tries_left(self) -> int:
        """Tries that Airflow may still start after this one."""
        return 0 if self.is_alone else max(self.max_tries + 1 - self.try_number, 0)

    def gang(self, installation: str, task_id: str | None = None) -> GangKey:
        """Return the gang of this task, or of another task of the same run."""
        return GangKey(installation, self.dag_id, self.run_id, task_id or self.task_id)

    def folders(self, settings: Settings) -> RunFolders:
        """Return the folders of this run."""
        return RunFolders(settings.home, self.dag_id, self.run_id)

    def orphan_grace_seconds(self) -> float:
        """Return how long a replica may run without this task or its next try.

        If a command that runs the task in its own process dies, its retries die with it.
        """
        return orphan_grace_seconds(
            tries_left=0 if self.in_process else self.tries_left,
            heartbeat_timeout_seconds=conf.getfloat("scheduler", "task_instance_heartbeat_timeout"),
            detection_seconds=conf.getfloat("scheduler", "task_instance_heartbeat_timeout_detection_interval"),
            retry_delay_seconds=self.retry_delay_seconds,
        )


def instance_name(task_id: str, map_index: int) -> str:
    """Return how Airflow names an instance among those of its task."""
    return task_id if map_index < 0 else f"{task_id}_{map_index}"


def user_mark(state: str | None, own_state: str) -> str:
    """Return what a user did with a task, in words, by the state that it has now; empty if nothing.

    A running task that was cleared is ``restarting``. In any other state that is not final Airflow itself has given it
    to another try: a scheduler that starts resets what its predecessor ran, and a try whose heartbeats are missing is
    given up.

    :param own_state: what it has while nobody touches it.
    """
    if state in FINISHED:
        return f"marked {state}"
    cleared = state == RESTARTING if own_state == RUNNING else state != own_state
    return "cleared" if cleared else ""


def runs_in_process() -> bool:
    """Tell whether Airflow runs this task inside a command (``tasks test``, ``dags test``)."""
    from airflow.sdk.execution_time import task_runner  # noqa: PLC0415 (only meaningful inside a task)

    comms = getattr(task_runner, "SUPERVISOR_COMMS", None)
    return type(comms).__name__ == "InProcessSupervisorComms"


def task_states(dag_id: str, run_id: str, task_id: str) -> dict[str, str | None]:
    """Ask Airflow for the states of a task's instances in a run: ``task`` or ``task_<map index>`` -> state.

    Works where Airflow runs our code: in a task or a trigger, never in a signal handler.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # noqa: PLC0415 (slow to import)

    states = RuntimeTaskInstance.get_task_states(dag_id=dag_id, task_ids=[task_id], run_ids=[run_id])
    return {name: None if state is None else str(state) for name, state in states.get(run_id, {}).items()}


def instance_count(run: TaskRun) -> int:
    """Return how many instances a mapped task has in its run; where Airflow cannot be asked, as many as are sure.

    ``airflow tasks render`` has no connection to ask by.
    """
    from airflow.sdk.execution_time import task_runner  # noqa: PLC0415 (only meaningful inside a task)

    can_ask = getattr(task_runner, "SUPERVISOR_COMMS", None) is not None
    found = task_states(run.dag_id, run.run_id, run.task_id) if can_ask else {}
    return max(len(found), run.map_index + 1)


def execution_api_health_url() -> str:
    """Return the health route of the execution API, resolved as Airflow's executors resolve its address."""
    base = conf.get("core", "execution_api_server_url", fallback="")
    if not base:
        root = conf.get("api", "base_url", fallback="/")
        if not root or root.startswith("/"):
            root = f"http://localhost:8080{root}"
        base = f"{root.rstrip('/')}/execution/"
    return f"{base.rstrip('/')}/health"


def is_reachable(url: str) -> bool:
    """Tell whether ``url`` answers within a second; no token is sent.

    A plain request on purpose: Airflow's own client shares state with the task and deadlocks in a signal handler.
    """
    try:
        with urllib.request.urlopen(url, timeout=HEALTH_TIMEOUT_SECONDS):  # noqa: S310 (Airflow's own configured URL)
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
