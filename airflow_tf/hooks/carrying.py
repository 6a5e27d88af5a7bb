"""Where the checkpoints of a training that goes on are copied to, and how a host that has none of them gets one."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_tf.core.checkpoint import verify
from airflow_tf.core.identity import RunFolders, digest, readable
from airflow_tf.core.settings import Settings
from airflow_tf.core.units import parse_seconds
from airflow_tf.hooks.airflow_run import TaskRun
from airflow_tf.hooks.hdfs import HdfsHook
from airflow_tf.hooks.staging import Log, ensure_staged
from airflow_tf.storage.client import carried, forget_carried

_RUNS = ".airflow_tf-runs"


def carried_uri(base: str, dag_id: str, run_id: str) -> str:
    """Return the folder, below the base of versions, of all that is copied in a run."""
    return f"{base.rstrip('/')}/{_RUNS}/{digest(dag_id, run_id)}"


def upload_of(upload: Mapping[str, Any], run: TaskRun, replica: int) -> dict[str, Any]:
    """Return what a supervisor is told of a replica's copies.

    A clear begins anew: what was copied before it is not looked at any more.

    :param upload: ``{"destination": base URI, "hdfs_conn_id": …, "every": duration}``.
    """
    base = str(upload["destination"])
    task = f"{readable(run.task_id)}-{run.view.first_try}"
    return {
        "uri": f"{carried_uri(base, run.dag_id, run.run_id)}/{task}/replica-{replica}",
        "options": HdfsHook(upload.get("hdfs_conn_id")).storage_options(base).to_json(),
        "every_seconds": parse_seconds(upload["every"]),
    }


def rescued(
    upload: Mapping[str, Any], run: TaskRun, replica: int, *, folders: RunFolders, settings: Settings, log: Log
) -> str | None:
    """Return the prefix of what was copied of a replica, if this host has no checkpoint of it itself.

    :raises CheckpointError: if the copy is damaged.
    """
    own = f"{readable(run.task_id)}--*/replica-{replica}/generation-*/checkpoints/*.index"
    if any(folders.root.glob(own)):
        return None
    conn_id = upload.get("hdfs_conn_id")
    uri = upload_of(upload, run, replica)["uri"]
    found = carried(uri, options=HdfsHook(conn_id).storage_options(uri))
    if found is None:
        return None
    name = posixpath.basename(found).partition("-")[2]
    staged = ensure_staged(
        f"{found}/{name}.*",
        hdfs_conn_id=conn_id,
        folders=folders,
        input_name=f"rescued-{run.task_id}-{replica}",
        settings=settings,
        log=log,
        refresh=True,
    )
    prefix = str(Path(staged.folder) / name)
    verify(prefix)
    log.warning("this host has no checkpoint of replica %s: training goes on from its copy %s", replica, found)
    return prefix


def forget(upload: Mapping[str, Any], run: TaskRun) -> None:
    """Remove what was copied in a run whose result is published.

    :raises StorageError: if that fails.
    """
    base = str(upload["destination"])
    options = HdfsHook(upload.get("hdfs_conn_id")).storage_options(base)
    forget_carried(carried_uri(base, run.dag_id, run.run_id), options=options)
