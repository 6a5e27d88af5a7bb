"""Publishing, as it runs in the mover: all files into a temporary directory beside the destination, then one rename.

A reader of the destination sees nothing or the whole, with ``manifest.json`` and ``_SUCCESS``.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import google_crc32c

from airflow_tf.core.errors import (
    PublishError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StorageUnavailableError,
)
from airflow_tf.core.manifest import PublishManifest
from airflow_tf.core.units import format_bytes
from airflow_tf.storage.ahead import NEW, OLD, beside, hidden_beside, take_over
from airflow_tf.storage.base import CHUNK_BYTES, FileSystem, Uri, exists, read_all
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.storage.versions import MANIFEST, SUCCESS, Versions
from airflow_tf.storage.wholeness import require_whole

_MOST_WORKERS = 4


@dataclass(frozen=True, slots=True)
class Publisher:
    """Publishes one folder at one destination."""

    uri: Uri
    files: FileSystem
    reporter: Reporter
    patience: Patience
    manifest: PublishManifest
    confirm: Callable[[], None] = lambda: None
    """Called right before the rename; raises if this publisher is not the one to publish any more."""

    def run(self, local: Path) -> str:
        """Publish the manifest's files from ``local`` and return the destination's URI.

        A destination with our digest is a success; one of ours with a lower fence, or edition, is replaced.

        :raises StorageExistsError: if the destination is not ours, or from a newer attempt.
        :raises PublishError: if a local file is not what the manifest says.
        """
        if self.patience(self._is_published):
            self.reporter.note(f"{self.uri} already holds this result")
            self.patience(self._remove_leftovers)  # of a publisher that died right after it had renamed
            self._point()
            return str(self.uri)
        temporary = beside(self.uri.path, NEW, self.manifest.fence)
        there = self._sent_ahead(temporary)
        self.patience(lambda: self._remove_leftovers(but=temporary))
        total = sum(entry["size"] for name, entry in self.manifest.files.items() if name not in there)
        self.reporter.note(f"publishing {len(self.manifest.files)} files, {format_bytes(total)}, to {self.uri}")
        self.reporter.expect(len(self.manifest.files) - len(there), total)
        try:
            self._fill(local, temporary, there)
            self.patience(lambda: self._move(temporary))
        finally:
            with contextlib.suppress(StorageError):  # renamed, or to be removed by the next publisher
                self.files.delete(temporary)
        self._point()
        return str(self.uri)

    def _sent_ahead(self, temporary: str) -> set[str]:
        """Let what was sent while it was written become ``temporary``; return which files need not be sent again."""
        parts = self.uri.path, self.manifest.fence, self.manifest.files, temporary
        self.patience(lambda: self.files.make_dirs(posixpath.dirname(self.uri.path)))
        there = self.patience(lambda: take_over(self.files, *parts))
        if there:
            self.reporter.note(f"{', '.join(sorted(there))} was sent while it was written")
        return there

    def _point(self) -> None:
        base = Uri(self.uri.scheme, self.uri.authority, posixpath.dirname(self.uri.path))
        Versions(base, self.files, self.patience, self.reporter.tick).point()

    def _remove_leftovers(self, but: str = "") -> None:
        """Remove what killed publishers of this destination left, except one with a newer fence."""
        for hidden in hidden_beside(self.files, self.uri.path):
            if hidden.fence <= self.manifest.fence and hidden.path != but:
                # In one step first: whoever still fills it must not rename what is left in the middle of the removal.
                gone = beside(self.uri.path, OLD, hidden.fence)
                with contextlib.suppress(StorageNotFoundError):  # its publisher was faster
                    self.files.rename(hidden.path, gone)
                    self.files.delete(gone)

    def _fill(self, local: Path, temporary: str, there: set[str]) -> None:
        folders = {posixpath.join(temporary, posixpath.dirname(name)).rstrip("/") for name in self.manifest.files}
        for folder in sorted(folders | {temporary}):
            self.patience(partial(self.files.make_dirs, folder))
        with ThreadPoolExecutor(_MOST_WORKERS, thread_name_prefix="publish") as pool:
            futures = [pool.submit(self._upload, local, temporary, names) for names in self._turns(there)]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            if errors := [error for future in done if (error := future.exception())]:
                self.reporter.cancel()
                pool.shutdown(cancel_futures=True)
                raise errors[0]
        for name, data in ((MANIFEST, self.manifest.dumps().encode()), (SUCCESS, b"")):
            path = posixpath.join(temporary, name)
            self.patience(partial(self.files.write, path, [data]))
            self.reporter.tick()

    def _turns(self, there: set[str]) -> list[list[str]]:
        """Return what to send at once: each large file, and the small ones, which go one after the other.

        Small files that end together ask the NameNode to close them before their DataNode has told of the last block;
        every second one then waits half a second for its next chance.
        """
        sizes = {name: entry["size"] for name, entry in self.manifest.files.items() if name not in there}
        large = [[name] for name, size in sizes.items() if size > CHUNK_BYTES]
        return [*large, [name for name, size in sizes.items() if size <= CHUNK_BYTES]]

    def _upload(self, local: Path, temporary: str, names: list[str]) -> None:
        for name in names:
            self.patience(lambda: self.files.write(posixpath.join(temporary, name), self._chunks(local, name)))  # noqa: B023
            self.reporter.tick(files=1)

    def _chunks(self, local: Path, name: str) -> Iterator[bytes]:
        """Yield a local file's bytes, and raise at its end if they are not those of the manifest."""
        expected, size, crc32c = self.manifest.files[name], 0, 0
        try:
            with (local / name).open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    size += len(chunk)
                    crc32c = google_crc32c.extend(crc32c, chunk)
                    yield chunk
                    self.reporter.tick(len(chunk))
        except OSError as error:
            raise PublishError(f"{local / name} cannot be read", error.strerror or str(error)) from error
        if (size, crc32c) != (expected["size"], expected["crc32c"]):
            raise PublishError(
                f"{local / name} is not the file that the manifest describes",
                f"{size} bytes with CRC32C {crc32c:08x}, not {expected['size']} with {expected['crc32c']:08x}",
                "Make the checkpoint again.",
            )

    def _is_published(self, path: str = "") -> bool | None:
        """Tell whether the destination (or ``path``) holds this very result, False: one to replace, None: nothing."""
        path = path or self.uri.path
        if not exists(self.files, path):
            return None
        try:
            found = json.loads(read_all(self.files, posixpath.join(path, MANIFEST)))
            fence, edition, digest = int(found["fence"]), int(found.get("edition", 0)), str(found["digest"])
        except (StorageNotFoundError, ValueError, KeyError, TypeError) as error:
            raise StorageExistsError(
                f"{self.uri} exists",
                "it has no manifest of airflow_tf, so it is not replaced",
                "Publish elsewhere, or remove it.",
            ) from error
        if digest == self.manifest.digest:
            return True
        if (fence, edition) >= (self.manifest.fence, self.manifest.edition):
            raise StorageExistsError(
                f"{self.uri} exists",
                f"it was published under fence {fence}, this result has fence {self.manifest.fence}",
                "A newer attempt has published; nothing is to be done.",
            )
        return False

    def _move(self, temporary: str) -> None:
        """Rename into place. Whatever the answer, the destination itself is looked at before it counts."""
        self.confirm()
        is_there = self._is_published()
        if is_there:
            return
        sizes = {name: entry["size"] for name, entry in self.manifest.files.items()}
        require_whole(self.files, temporary, sizes | {MANIFEST: len(self.manifest.dumps().encode()), SUCCESS: 0})
        aside = None
        if is_there is False:
            aside = beside(self.uri.path, OLD, self.manifest.fence)
            self.files.rename(self.uri.path, aside)
            if self._is_in_place_after_all(aside):
                return
        try:
            self.files.rename(temporary, self.uri.path)
        except StorageError as error:
            if aside and not exists(self.files, self.uri.path):
                self.files.rename(aside, self.uri.path)
            if isinstance(error, StorageUnavailableError) and self._is_published():
                return  # the answer was lost, the rename was done
            if not isinstance(error, StorageExistsError):
                raise
            self._move(temporary)  # another one was faster: it is replaced, or it is told why it is not
            return
        self._check_arrived(temporary)
        with contextlib.suppress(StorageError):  # the result is there; the next publisher removes the rest
            self._remove_leftovers()

    def _is_in_place_after_all(self, aside: str) -> bool:
        """Look at what was put aside: a newer result that has come since the last look goes back to its place."""
        goes_back = True
        try:
            goes_back = bool(self._is_published(aside))
        finally:
            if goes_back:  # it is this very result, or not to be replaced, which is raised
                self.files.rename(aside, self.uri.path)
        return goes_back

    def _check_arrived(self, temporary: str) -> None:
        inside = posixpath.join(self.uri.path, posixpath.basename(temporary))
        if exists(
            self.files, inside
        ):  # a server that ignores the no-overwrite form has moved it *into* the destination
            self.files.delete(inside)
            raise StorageExistsError(f"{self.uri} exists", "another writer made it meanwhile", "Publish elsewhere.")
        if not self._is_published():
            raise PublishError(f"{self.uri} does not hold the published result", "another writer replaced it")
