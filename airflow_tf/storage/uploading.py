"""Upload of a local file or folder, as it runs in the mover: under a temporary name, then renamed into place.

A reader of the destination sees nothing or the whole. Two uploads to one destination at once disturb each other: the
one that starts later removes what the other has written, which then fails.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from airflow_tf.core.errors import StorageError, StorageExistsError, StorageNotFoundError, StorageUnavailableError
from airflow_tf.core.units import format_bytes
from airflow_tf.storage.base import CHUNK_BYTES, FileSystem, Uri, exists
from airflow_tf.storage.crew import Crew
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.storage.wholeness import require_whole

_WORKERS = 4
_LEFTOVER = re.compile(r"^\.airflow_tf-upload-(new|old)-(.*)-[0-9a-f]{12}$")


@dataclass(frozen=True, slots=True)
class Uploader:
    """Uploads to one destination."""

    uri: Uri
    files: FileSystem
    reporter: Reporter
    patience: Patience
    overwrite: bool

    def run(self, local: Path) -> dict[str, Any]:
        """Upload ``local`` and return ``destination``, ``files`` and ``bytes``.

        :raises StorageExistsError: if the destination exists, unless ``overwrite``.
        :raises StorageNotFoundError: if there is nothing to upload.
        """
        sources = _sources(local)
        if not self.overwrite and self.patience(lambda: exists(self.files, self.uri.path)):
            raise StorageExistsError(f"{self.uri} exists", todo="Choose another path, or set overwrite.")
        total = sum(path.stat().st_size for path in sources.values())
        self.patience(lambda: self._remove_leftovers("new"))
        self.reporter.note(f"uploading {len(sources)} files, {format_bytes(total)}, to {self.uri}")
        self.reporter.expect(len(sources), total)
        temporary, tried = self._beside("new"), list[str]()
        try:
            self._send(sources, temporary)
            sizes = {name: path.stat().st_size for name, path in sources.items()}
            self.patience(lambda: self._move(temporary, sizes, tried))
        finally:
            with contextlib.suppress(StorageError):  # renamed, or to be removed by the next upload
                self.files.delete(temporary)
        return {"destination": str(self.uri), "files": len(sources), "bytes": total}

    def _beside(self, kind: str) -> str:
        folder, name = posixpath.split(self.uri.path)
        return posixpath.join(folder, f".airflow_tf-upload-{kind}-{name}-{uuid.uuid4().hex[:12]}")

    def _remove_leftovers(self, kind: str) -> None:
        """Remove what killed uploads to this destination left; the old content only when the new one is in place."""
        folder, name = posixpath.split(self.uri.path)
        self.files.make_dirs(folder)
        for info in list(self.files.list(folder)):
            match = _LEFTOVER.match(posixpath.basename(info.path))
            if match and match.groups() == (kind, name):
                self.files.delete(info.path)

    def _send(self, sources: dict[str, Path], temporary: str) -> None:
        """Write the files; the folders first, so that a worker only writes."""
        names = {name: posixpath.join(temporary, name) if name else temporary for name in sources}
        for folder in sorted({posixpath.dirname(path) for path in names.values()}):
            self.patience(partial(self.files.make_dirs, folder))

        def task(name: str) -> Callable[[], None]:
            return lambda: self._send_one(sources[name], names[name])

        Crew(_WORKERS).run((task(name) for name in sources), self.reporter.cancel)

    def _send_one(self, source: Path, path: str) -> None:
        sent = self.patience(lambda: self.files.write(path, self._chunks(source)))
        if sent != (size := source.stat().st_size):
            raise StorageError(f"{source} changed while it was read", f"{sent} bytes were sent, it has {size}")
        self.reporter.tick(files=1)

    def _chunks(self, source: Path) -> Iterator[bytes]:
        with source.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
                self.reporter.tick(len(chunk))

    def _move(self, temporary: str, sizes: dict[str, int], tried: list[str]) -> None:
        """Rename into place. ``tried`` remembers over repeats that this has been tried: an answer may have been lost.

        :raises StorageError: if another writer has removed what was written, whatever lies at the destination.
        """
        if tried and not exists(self.files, temporary):
            self._require_whole(self.uri.path, sizes)
        else:
            self._require_whole(temporary, sizes)
            self._rename(temporary, sizes, tried)
        inside = posixpath.join(self.uri.path, posixpath.basename(temporary))
        # A server that ignores the no-overwrite form has moved it into a folder that was there.
        if self.files.stat(self.uri.path).is_dir and exists(self.files, inside):
            self.files.delete(inside)
            raise StorageExistsError(f"{self.uri} exists", "another writer made it meanwhile")
        with contextlib.suppress(StorageError):  # the new content is there; the next upload removes the rest
            self._remove_leftovers("old")

    def _rename(self, temporary: str, sizes: dict[str, int], tried: list[str]) -> None:
        aside = None
        if self.overwrite and exists(self.files, self.uri.path):
            aside = self._beside("old")
            self.files.rename(self.uri.path, aside)
        tried.append(temporary)
        try:
            self.files.rename(temporary, self.uri.path)
        except StorageError as error:
            lost = isinstance(error, StorageUnavailableError | StorageNotFoundError)
            if not (lost and exists(self.files, self.uri.path) and not exists(self.files, temporary)):
                if aside and not exists(self.files, self.uri.path):
                    self.files.rename(aside, self.uri.path)
                    tried.clear()  # what lies there now is the old content
                raise
            self._require_whole(self.uri.path, sizes)

    def _require_whole(self, path: str, sizes: dict[str, int]) -> None:
        """Compare sizes: another upload removes what it takes for the rest of a killed one."""
        if "" not in sizes:
            require_whole(self.files, path, sizes)
        elif not exists(self.files, path) or self.files.stat(path).size != sizes[""]:
            why = "another writer removed it, or made it anew"
            raise StorageError(f"{path} is not whole any more", why, "Try again when the other writer has ended.")


def _sources(local: Path) -> dict[str, Path]:
    """Return the files to send by their name below the destination; a single file has the empty name."""
    if local.is_file():
        return {"": local}
    found = {path.relative_to(local).as_posix(): path for path in sorted(local.rglob("*")) if path.is_file()}
    if not found:
        raise StorageNotFoundError(f"{local} has nothing to upload", todo="Check the path on this host.")
    return found
