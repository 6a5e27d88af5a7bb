"""Staging for tasks: the staging operator and every training task call the same function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from airflow_tf.core.errors import InputError
from airflow_tf.core.identity import RunFolders
from airflow_tf.core.manifest import StagedInput
from airflow_tf.core.settings import Settings
from airflow_tf.hooks.hdfs import HdfsHook
from airflow_tf.storage.base import one_text
from airflow_tf.storage.client import stage


class Log(Protocol):
    """The part of a logger that is used here."""

    def info(self, message: str, /, *arguments: object) -> None:
        """Log a line, ``%`` style."""
        ...

    def warning(self, message: str, /, *arguments: object) -> None:
        """Log a warning, ``%`` style."""
        ...


def ensure_staged(
    source: str | Sequence[str],
    *,
    hdfs_conn_id: str | None,
    folders: RunFolders,
    input_name: str,
    settings: Settings,
    log: Log,
    refresh: bool = False,
    require_success: bool = False,
) -> StagedInput:
    """Stage ``source``, one URI or several, as an input of this run on this host, unless it is there.

    So it does not matter on which host the staging task ran. ``refresh`` looks at the source again (a cleared staging
    task); what has not changed still comes from the cache.
    """
    text = one_text(source)
    return stage(
        text,
        options=HdfsHook(hdfs_conn_id).storage_options(text),
        target=folders.staged(input_name),
        cache_dir=settings.cache_dir,
        cache_bytes=settings.cache_bytes,
        on_progress=lambda text: log.info("%s: %s", input_name, text),
        refresh=refresh,
        require_success=require_success,
    )


def staged_as(name: str, declared: Any) -> str:  # noqa: ANN401 (before it is rendered it may be a task's XCom)
    """Return the ``input_name`` of the task that stages an input: trainings of one DAG may call theirs alike."""
    return str(declared.get("staged_as") or name) if isinstance(declared, Mapping) else name


def ensure_all_staged(
    inputs: Mapping[str, Mapping[str, Any]], *, folders: RunFolders, settings: Settings, log: Log
) -> dict[str, StagedInput]:
    """Stage every input of a task, unless it is there.

    :param inputs: name -> ``{"source": uri, "hdfs_conn_id": …, "require_success": …, "digest": …, "staged_as": …}``;
        with the digest that the staging task returned, nothing else is taken.
    :raises InputError: if the source is not any more what the staging task has copied.
    """
    return {
        name: _ensure_same(staged_as(name, declared), declared, folders=folders, settings=settings, log=log)
        for name, declared in inputs.items()
    }


def _ensure_same(
    name: str, declared: Mapping[str, Any], *, folders: RunFolders, settings: Settings, log: Log
) -> StagedInput:
    def look(*, refresh: bool) -> StagedInput:
        return ensure_staged(
            declared["source"],
            hdfs_conn_id=declared.get("hdfs_conn_id"),
            folders=folders,
            input_name=name,
            settings=settings,
            log=log,
            refresh=refresh,
            require_success=bool(declared.get("require_success")),
        )

    staged, wanted = look(refresh=False), declared.get("digest")
    if wanted and staged.digest != wanted:  # this host may have staged it before the staging task was cleared
        staged = look(refresh=True)
    if wanted and staged.digest != wanted:
        raise InputError(
            f"input {name}: {staged.source} is not what the staging task has copied",
            f"it changed since, and this host finds version {staged.digest} instead of {wanted}",
            "Clear the staging task with what comes after it, so that all replicas train on the same.",
        )
    return staged
