"""The checkpoint that a training begins with: brought to this host, verified, the same for all replicas and tries."""

from __future__ import annotations

import contextlib
import os
import posixpath
import tempfile
from pathlib import Path

from airflow_tf.core.checkpoint import verify
from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.identity import RunFolders, distinct
from airflow_tf.core.settings import Settings
from airflow_tf.hooks.hdfs import HdfsHook
from airflow_tf.hooks.staging import Log, ensure_staged
from airflow_tf.storage.client import latest_version
from airflow_tf.storage.lock import locked

LATEST = "latest"
_VERSION, _MODEL = "v=", "model"
INITIAL_INPUT = "initial-checkpoint"


def initial_place(task_id: str) -> str:
    """Return what a checkpoint to begin with is staged as: trainings of one DAG may begin with different ones."""
    return f"{INITIAL_INPUT}.{task_id}"


def ensure_initial(
    source: str,
    *,
    hdfs_conn_id: str | None,
    folders: RunFolders,
    task_id: str,
    settings: Settings,
    log: Log,
    allow_from_scratch: bool = False,
    made: str = "",
) -> str | None:
    """Stage the checkpoint that ``source`` names and return its prefix on this host.

    ``<base>/latest`` is the newest version published below a base, as it was when the run first asked; a version's
    folder is its model; anything else is a prefix. It is looked at again only where ``made`` has changed, which tells
    what was made there from what was made there before.

    :raises CheckpointError: if it is damaged, or nothing is published and that does not mean to begin from scratch.
    """
    prefix = _resolved(source, hdfs_conn_id, folders, task_id)
    if prefix is None:
        if not allow_from_scratch:
            raise CheckpointError(
                f"there is no version below {posixpath.dirname(source)} to begin with",
                todo="Publish one, correct initial_checkpoint, or set allow_from_scratch for the first run.",
            )
        log.warning("nothing is published below %s yet: training begins from scratch", posixpath.dirname(source))
        return None
    note = folders.root / f"{distinct(initial_place(task_id))}.made"
    with locked(note, lambda: log.info("waiting for another replica that fetches the checkpoint to begin with")):
        is_other = made != (note.read_text(encoding="utf-8") if note.exists() else "")
        staged = ensure_staged(
            f"{prefix}.*",
            hdfs_conn_id=hdfs_conn_id,
            folders=folders,
            input_name=initial_place(task_id),
            settings=settings,
            log=log,
            refresh=is_other,
        )
        if is_other:  # cut off by a power cut it differs from all: then it is looked at once more
            note.write_text(made, encoding="utf-8")
    local = str(Path(staged.folder) / posixpath.basename(prefix))
    verify(local)
    log.info("training begins with %s, unless this run has a checkpoint of its own", prefix)
    return local


def _resolved(source: str, hdfs_conn_id: str | None, folders: RunFolders, task_id: str) -> str | None:
    """Return the prefix that ``source`` means in this run; what ``latest`` is, the first who asks decides."""
    base, name = posixpath.split(source.rstrip("/"))
    if name != LATEST:
        return posixpath.join(source.rstrip("/"), _MODEL) if name.startswith(_VERSION) else source
    note = folders.root / f"{distinct(initial_place(task_id))}.version"
    if not note.exists():
        found = latest_version(base, options=HdfsHook(hdfs_conn_id).storage_options(base))
        if found is None:
            return None
        _write_once(note, posixpath.join(found, _MODEL))
    return note.read_text(encoding="utf-8")


def _write_once(path: Path, text: str) -> None:
    """Write a file unless another process did meanwhile: it appears whole."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # the other one's counts
            path.hardlink_to(file.name)
