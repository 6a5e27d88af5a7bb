"""Whether a base can be published to, asked before hours of training: something is written there and taken away."""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from dataclasses import dataclass

from airflow_tf.core.errors import StorageError, StorageExistsError
from airflow_tf.storage.base import FileSystem, Uri, exists
from airflow_tf.storage.progress import Patience


@dataclass(frozen=True, slots=True)
class Destination:
    """The base at ``uri``, which need not be there yet."""

    uri: Uri
    files: FileSystem
    patience: Patience

    def check(self) -> None:
        """Write an empty file into the base, or the nearest folder above it that is there, and delete it.

        :raises StorageExistsError: if that is no folder.
        :raises StoragePermissionError: if it may not be written.
        :raises StorageError: whatever else the file system says.
        """
        path = posixpath.join(self.patience(self._nearest), f".airflow_tf-check-{uuid.uuid4().hex[:12]}")
        try:
            self.patience(lambda: self.files.write(path, [b""]))
        finally:
            with contextlib.suppress(StorageError):  # it may not be there; an empty file that is left disturbs nobody
                self.files.delete(path)

    def _nearest(self) -> str:
        """Return the base, or the folder above it that is there; from the top: below a file a look is an error."""
        nearest = "/"
        for name in self.uri.path.split("/")[1:]:
            path = posixpath.join(nearest, name)
            if not exists(self.files, path):
                break
            if not self.files.stat(path).is_dir:
                where = self.uri.at(path)
                raise StorageExistsError(f"{self.uri} cannot be a folder", f"{where} is a file", "Choose another path.")
            nearest = path
        return nearest
