"""What a training task has left behind once nothing of it runs any more, with what users marked taken into account."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.sdk import Context

from airflow_tf.core.cluster import CHIEF
from airflow_tf.core.errors import AirflowTfError, CheckpointError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import GangLedger, Outcome, ReplicaRecord
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import AttemptState
from airflow_tf.core.units import parse_seconds
from airflow_tf.core.verdict import ALL, AT_LEAST, LEAD
from airflow_tf.hooks.airflow_run import TaskRun, task_states
from airflow_tf.hooks.mapping import argument_of, instance_names
from airflow_tf.hooks.staging import Log
from airflow_tf.ledger import open_ledger
from airflow_tf.supervisor.client import has_supervisor

LOOK_SECONDS = 1.0
_TODO = "Clear its task to train it again."
MARGIN_SECONDS = 30.0
"""How long beyond its kill grace a replica may take to end."""

_DEFAULT_GRACE_SECONDS = 30.0
_LONG_GRACE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Settled:
    """What a training task has left: its gang, the record of each replica, and the state of each one's instance."""

    key: GangKey
    records: dict[int, ReplicaRecord]
    states: dict[int, str]


def settle_task(context: Context, settings: Settings, task_id: str, log: Log) -> Settled:
    """Wait until nothing of a training task of this run is alive, and return what it has left.

    :raises CheckpointError: if a replica is still alive at the deadline.
    """
    dag, run = context["dag"], TaskRun.from_context(context)
    ledger = open_ledger(settings)
    key = run.gang(ledger.ledger_id, task_id)
    deadline_seconds = _kill_grace_seconds(dag, task_id) + MARGIN_SECONDS
    folder = run.folders(settings).gang(key)
    records = settled_records(ledger, key, folder, deadline_seconds=deadline_seconds, log=log)
    states = task_states(run.dag_id, run.run_id, task_id)
    return Settled(key, records, {n: states.get(name) or "" for n, name in instance_names(dag, task_id).items()})


def _kill_grace_seconds(dag: Any, task_id: str) -> float:  # noqa: ANN401 (Airflow exports no class for parsed DAGs)
    """Return the kill grace of a training task; where it is a template, a long one."""
    try:
        return parse_seconds(argument_of(dag, task_id, "kill_grace_seconds", _DEFAULT_GRACE_SECONDS))
    except AirflowTfError:
        return _LONG_GRACE_SECONDS


def settled_records(
    ledger: GangLedger,
    key: GangKey,
    folder: Path,
    *,
    deadline_seconds: float,
    log: Log,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[int, ReplicaRecord]:
    """Return the gang's records when no replica is alive: one that a user marked may still be saving.

    :param folder: of the gang; where it has no supervisor, nothing of it lives.
    :raises CheckpointError: if one is still alive at the deadline.
    """
    until = time.monotonic() + deadline_seconds
    told = False
    while True:
        # Before the ledger is read: a supervisor records how its replicas ended before it ends itself.
        may_live = not folder.exists() or has_supervisor(folder)
        records = ledger.replicas(key)
        alive = [number for number, record in records.items() if record.attempts and record.outcome is None]
        if not alive or not may_live:
            return records
        if time.monotonic() >= until:
            raise CheckpointError(
                f"replicas {alive} of task {key.task_id!r} are still running",
                f"waited {deadline_seconds:.0f} s for their end",
                "'airflow tf runs' shows them, 'airflow tf cancel' stops them.",
            )
        if not told:
            log.info("waiting for the end of replicas %s", alive)
            told = True
        sleep(LOOK_SECONDS)


def replica_checkpoints(
    key: GangKey,
    records: Mapping[int, ReplicaRecord],
    replicas: Sequence[int],
    marked: Mapping[int, str],
    log: Log,
    success: tuple[str, int] = (ALL, 0),
) -> dict[str, str]:
    """Return ``replica-<n>`` -> checkpoint prefix of the current generation of each of ``replicas``.

    A replica whose task a user marked success gives the last complete checkpoint that it has saved, or is left out.

    :param marked: replica -> state of its task instance.
    :param success: which replicas must have succeeded, as by :func:`airflow_tf.core.verdict.parse_success`.
    :raises CheckpointError: if a replica that must has no durable success, or none has a checkpoint.
    """
    if not records:
        raise CheckpointError(
            f"task {key.task_id!r} has trained nothing in run {key.run_id}",
            todo="Run the training task of the same run first; 'airflow tasks test' gives each call a run of its own.",
        )
    found: dict[str, str] = {}
    missing: dict[int, str] = {}
    for replica in replicas:
        outcome = records[replica].outcome if replica in records else None
        if outcome is not None and outcome.state is AttemptState.SUCCEEDED and outcome.checkpoint is not None:
            found[f"replica-{replica}"] = outcome.checkpoint
        elif marked.get(replica) == "success":
            checkpoint = None if outcome is None else outcome.checkpoint
            log.warning(
                "replica %s was marked success and has %s",
                replica,
                f"not finished; its last checkpoint {checkpoint} counts" if checkpoint else "no checkpoint: left out",
            )
            found |= {f"replica-{replica}": checkpoint} if checkpoint else {}
        else:
            missing[replica] = _state(outcome)
    _check_missing(missing, len(found), success)
    if not found:
        raise CheckpointError("no replica has a checkpoint", "their tasks were marked success", "Clear them to train.")
    return found


def _check_missing(missing: Mapping[int, str], succeeded: int, success: tuple[str, int]) -> None:
    """Refuse where the success policy does not allow that these replicas have nothing."""
    policy, at_least = success
    if policy == AT_LEAST and succeeded < at_least:
        why = "; ".join(f"replica {replica}: {state}" for replica, state in missing.items())
        raise CheckpointError(f"{succeeded} replicas have succeeded, but at least {at_least} must", why, _TODO)
    needed = list(missing) if policy == ALL else [number for number in missing if policy == CHIEF and number == LEAD]
    if needed:
        raise CheckpointError(f"replica {needed[0]} has nothing to aggregate", missing[needed[0]], _TODO)


def _state(outcome: Outcome | None) -> str:
    return "no result yet" if outcome is None else f"{outcome.state}, {outcome.message or 'no checkpoint'}"
