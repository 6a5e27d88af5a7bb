"""The newest checkpoint of a training that goes on, kept at the destination: what is left of it if its host is lost.

Below one URI lies one folder for each checkpoint, whole or not at all; when a newer one is there the older ones go.
Their names begin with the time of the save.
"""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import dataclass
from pathlib import Path

from airflow_tf.core.errors import StorageExistsError, StorageNotFoundError
from airflow_tf.storage.base import FileInfo, FileSystem, Uri
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.storage.uploading import Uploader


@dataclass(frozen=True, slots=True)
class Carried:
    """The checkpoints of one replica below ``uri``."""

    uri: Uri
    files: FileSystem
    reporter: Reporter
    patience: Patience

    def put(self, local: Path) -> str:
        """Upload a folder with one checkpoint under its own name, then remove the others; return its URI."""
        target = Uri(self.uri.scheme, self.uri.authority, posixpath.join(self.uri.path, local.name))
        with contextlib.suppress(StorageExistsError):  # it is there already
            Uploader(target, self.files, self.reporter, self.patience, overwrite=False).run(local)
        for info in self.patience(self._all):
            if info.path != target.path:
                self.patience(lambda path=info.path: self.files.delete(path))  # type: ignore[misc]
        return str(target)

    def newest(self) -> str | None:
        """Return the URI of the folder whose name comes last, None where there is none."""
        found = sorted(info.path for info in self.patience(self._all))
        return self.uri.at(found[-1]) if found else None

    def _all(self) -> list[FileInfo]:
        try:
            listed = list(self.files.list(self.uri.path))
        except StorageNotFoundError:
            return []
        return [info for info in listed if info.is_dir and not posixpath.basename(info.path).startswith(".")]
