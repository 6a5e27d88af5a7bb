"""Where the checkpoints of a training that goes on are copied to, and how a host that has none of them gets one."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_tf.core.checkpoint import verify
from airflow_tf.core.errors import StorageError
from airflow_tf.core.identity import digest, readable
from airflow_tf.core.ledger import ReplicaRecord
from airflow_tf.core.settings import Settings
from airflow_tf.core.units import parse_seconds
from airflow_tf.hooks.airflow_run import TaskRun
from airflow_tf.hooks.hdfs import HdfsHook
from airflow_tf.hooks.staging import Log, ensure_staged
from airflow_tf.storage.carrying import RUNS, copied_at_ns, generation_uri
from airflow_tf.storage.client import carried, forget_carried
from airflow_tf.supervisor.client import has_supervisor
from airflow_tf.supervisor.results import replica_folder

_ASK_SECONDS = 20.0
"""A training must not wait longer for the news that nothing was copied."""
_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "JAVA_HOME")
_PREFIXES = ("HADOOP_", "KRB5", "GSS_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


def upload_of(upload: Mapping[str, Any], run: TaskRun, replica: int) -> dict[str, Any]:
    """Return what a supervisor is told of a replica's copies: it inherits nothing of what this task's environment has.

    :param upload: ``{"destination": base URI, "hdfs_conn_id": …, "every": duration}``.
    """
    base = str(upload["destination"])
    return {
        "uri": f"{_task_uri(base, run, run.task_id)}/replica-{replica}",
        "options": HdfsHook(upload.get("hdfs_conn_id")).storage_options(base).to_json(),
        "environment": {name: value for name, value in os.environ.items() if _is_read(name)},
        "every_seconds": parse_seconds(upload["every"]),
    }


def _is_read(name: str) -> bool:
    """Tell whether a client of HDFS reads a variable."""
    return name in _VARIABLES or name.startswith(_PREFIXES) or name.lower() in _PROXIES


def _task_uri(base: str, run: TaskRun, task_id: str) -> str:
    """Return the folder of all that is copied of a task in a run."""
    task = f"{readable(task_id)}-{digest(task_id, length=8)}"
    return f"{base.rstrip('/')}/{RUNS}/{digest(run.dag_id, run.run_id)}/{task}"


@dataclass(frozen=True, slots=True)
class Generation:
    """A replica's present generation as a try finds it: ``record`` of the ledger, gang's ``folder`` on this host."""

    run: TaskRun
    replica: int
    record: ReplicaRecord
    folder: Path

    @property
    def may_go_on_elsewhere(self) -> bool:
        """Tell whether it has been trained before, and this host does not train it now."""
        record = self.record
        if not record.attempts and self.run.try_number <= record.first_try:
            return False
        return not (record.attempts and record.outcome is None and has_supervisor(self.folder))

    @property
    def saved_ns(self) -> int:
        """When this host has saved a checkpoint of it last, 0 where it has none."""
        own = replica_folder(self.folder, self.replica, self.record.generation) / "checkpoints"
        return max((index.stat().st_mtime_ns for index in own.glob("*.index")), default=0)

    def copies(self, replica_uri: str) -> str:
        """Return where to look: in the first generation of a new ledger, in all that an earlier one has counted."""
        if self.record.generation == 1 and not self.record.attempts:
            return replica_uri
        return generation_uri(replica_uri, self.record.generation)


def rescued(
    generation: Generation, upload: Mapping[str, Any], *, settings: Settings, log: Log, allow_from_scratch: bool
) -> dict[str, Any]:
    """Return what a launch is told of a copy that is newer than all checkpoints of the generation on this host.

    Another host may have trained it meanwhile. Newer is what was saved later: ``copied_checkpoint`` is the prefix,
    ``copied_at_ns`` the time. Empty where there is none.

    :raises CheckpointError: if the copy is damaged.
    :raises StorageError: if it is not known whether there is one, and that would mean to begin from scratch unasked.
    """
    if not generation.may_go_on_elsewhere:
        return {}
    run, conn_id, own_ns = generation.run, upload.get("hdfs_conn_id"), generation.saved_ns
    uri = generation.copies(upload_of(upload, run, generation.replica)["uri"])
    try:
        found = carried(uri, options=HdfsHook(conn_id).storage_options(uri), stall_seconds=_ASK_SECONDS)
    except StorageError as error:
        if not allow_from_scratch and not own_ns:
            raise
        begins = "goes on from what this host has" if own_ns else "may begin from scratch"
        log.warning("it is not known whether this training was copied, and it %s: %s", begins, error)
        return {}
    saved_ns = copied_at_ns(found) if found else 0
    if found is None or saved_ns <= own_ns:
        return {}
    name = posixpath.basename(found).partition("-")[2]
    staged = ensure_staged(
        f"{found}/{name}.*",
        hdfs_conn_id=conn_id,
        folders=run.folders(settings),
        input_name=f"rescued-{digest(run.task_id)}-{generation.replica}",
        settings=settings,
        log=log,
        refresh=True,
    )
    prefix = str(Path(staged.folder) / name)
    verify(prefix)
    log.warning(
        "training of replica %s goes on from a copy newer than what this host has: %s", generation.replica, found
    )
    return {"copied_checkpoint": prefix, "copied_at_ns": saved_ns}


def forget(upload: Mapping[str, Any], run: TaskRun, task_id: str) -> None:
    """Remove what was copied of a training task whose result is published.

    :raises StorageError: if that fails.
    """
    base = str(upload["destination"])
    options = HdfsHook(upload.get("hdfs_conn_id")).storage_options(base)
    forget_carried(_task_uri(base, run, task_id), options=options)
