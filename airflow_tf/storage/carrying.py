"""The newest checkpoint of a training that goes on, kept at the destination: what is left of it if its host is lost.

Below the folder of a generation lies one folder for each checkpoint, whole or not at all; when a newer one is there the
older ones go. Their names begin with the time of the save.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

from airflow_tf.core.errors import StorageExistsError, StorageNotFoundError
from airflow_tf.storage.base import FileInfo, FileSystem, Uri
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.storage.uploading import Uploader

RUNS = ".airflow_tf-runs"
"""Folder, below the base of versions, of what is copied while runs train: ``<run>/<task>/replica-…/generation-…``."""
_GENERATION = re.compile(r"^generation-(\d+)$")


def generation_uri(replica_uri: str, generation: int) -> str:
    """Return the folder of what is copied of one generation of a replica."""
    return f"{replica_uri}/generation-{generation}"


def copied_at_ns(copy: str) -> int:
    """Return when the checkpoint in a copy's folder was saved, by the clock of the host that saved it."""
    return int(posixpath.basename(copy).partition("-")[0])


@dataclass(frozen=True, slots=True)
class Carried:
    """The checkpoints of one generation of a replica below ``uri``, or of all its generations."""

    uri: Uri
    files: FileSystem
    reporter: Reporter
    patience: Patience

    def put(self, local: Path) -> str:
        """Upload a folder with one checkpoint under its own name, then remove what is older; return its URI.

        Where a newer one is there nothing is done, and that one is returned: an upload that took long must not undo
        what was copied meanwhile. What is older is earlier checkpoints, and those of earlier generations; with them go
        the parts that killed uploads have left.
        """
        path = posixpath.join(self.uri.path, local.name)
        newest = max((info.path for info in self.patience(lambda: self._folders(self.uri.path))), default="")
        if newest > path:
            return self.uri.at(newest)
        target = Uri(self.uri.scheme, self.uri.authority, path)
        with contextlib.suppress(StorageExistsError):  # it is there already
            Uploader(target, self.files, self.reporter, self.patience, overwrite=False).run(local)
        for old in self.patience(lambda: self._older_than(path)):
            self.patience(lambda old=old: self.files.delete(old))  # type: ignore[misc]
        return str(target)

    def newest(self) -> str | None:
        """Return the URI of the folder that was saved last, None where there is none."""
        found = self.patience(self._checkpoints)
        return self.uri.at(max(found, key=posixpath.basename)) if found else None

    def _checkpoints(self) -> list[str]:
        found = []
        for info in self._folders(self.uri.path):
            is_generation = _GENERATION.match(posixpath.basename(info.path))
            found += [each.path for each in self._folders(info.path)] if is_generation else [info.path]
        return found

    def _older_than(self, path: str) -> list[str]:
        """Return the folders that ``path`` makes useless; the unfinished ones have its time of save in their names."""
        folder, name = posixpath.split(path)
        old = [info.path for info in self._list(folder) if _time(info.path) < _time(name)]
        replica, generation = posixpath.split(folder)
        own = _GENERATION.match(generation)
        for info in self._folders(replica) if own else []:
            other = _GENERATION.match(posixpath.basename(info.path))
            if own and other and int(other.group(1)) < int(own.group(1)):
                old.append(info.path)
        return old

    def _folders(self, path: str) -> list[FileInfo]:
        return [info for info in self._list(path) if not posixpath.basename(info.path).startswith(".")]

    def _list(self, path: str) -> list[FileInfo]:
        try:
            return [info for info in self.files.list(path) if info.is_dir]
        except StorageNotFoundError:
            return []


def _time(path: str) -> str:
    """Return the time of save in a checkpoint's name, whole or unfinished; what has none is never old."""
    found = re.search(r"\d{20}", posixpath.basename(path))
    return found.group() if found else "~"
