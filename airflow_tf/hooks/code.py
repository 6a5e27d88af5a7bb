"""The code of a training for tasks: copied when the first task of a run on this host asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.identity import RunFolders
from airflow_tf.hooks.staging import Log
from airflow_tf.storage.code import Snapshot, known_snapshot, snapshot


def program_folder(code: str | None, dag: Any, folders: Callable[[], RunFolders], log: Log) -> Path:  # noqa: ANN401 (Airflow exports no class for parsed DAGs)
    """Return the folder from which a program's entrypoint is found: this run's copy of ``code``, or the DAG file's.

    :param folders: asked only where there is code.
    :param code: a folder or a zip file, relative to the DAG file.
    :raises DeclarationError: if it cannot be copied.
    """
    beside = Path(dag.fileloc).parent
    if code is None:
        return beside
    found = snapshot((beside / code).absolute(), _home(folders()))
    log.info("code %s of %s: %d files, %d bytes", found.digest[:16], found.source, found.files, found.bytes)
    return Path(found.folder)


def code_version(code: str, dag: Any, folders: RunFolders) -> Snapshot | None:  # noqa: ANN401 (as above)
    """Return what this run has copied of ``code`` on this host; None if it has not."""
    return known_snapshot((Path(dag.fileloc).parent / code).absolute(), _home(folders))


def find_entrypoint(entrypoint: str, folder: Path, *, is_code: bool = False) -> tuple[str, str]:
    """Return the entrypoint as a replica needs it, and the folder its imports come from.

    :param is_code: ``folder`` is code that was given as a whole: scripts lie in it, and import from its top.
    :raises DeclarationError: if a script does not exist.
    """
    if ":" in entrypoint and not entrypoint.endswith(".py"):
        return entrypoint, str(folder)
    script = (folder / entrypoint).resolve()
    if not script.is_file() or (is_code and not script.is_relative_to(folder.resolve())):
        raise DeclarationError(
            f"entrypoint {entrypoint!r} does not exist",
            f"looked for {script}",
            f"Write a path relative to the {'code' if is_code else 'DAG file'}, or module:function.",
        )
    return str(script), str(folder if is_code else script.parent)


def _home(folders: RunFolders) -> Path:
    return folders.root / "code"
