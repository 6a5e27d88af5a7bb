"""Sending what will be published while it is still being written: the data of an average goes up as it is made.

It lies in a hidden folder beside the destination, ``.airflow_tf-sent-<fence>-<version>-<id>``, with a note of size and
checksum that is written last. A publisher takes over what its manifest describes, and removes the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from airflow_tf.core.errors import PublishError, StorageError, StorageNotFoundError
from airflow_tf.storage.base import CHUNK_BYTES, FileSystem, Uri, read_all
from airflow_tf.storage.progress import Patience, Reporter

NEW, OLD, SENT = "new", "old", "sent"
_HIDDEN = re.compile(r"^\.airflow_tf-(new|old|sent)-(\d+)-(.*)-[0-9a-f]{12}$")
_NOTE = ".sent.json"
_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Hidden:
    """A folder beside a destination that is being filled, was replaced, or was sent ahead."""

    path: str
    kind: str
    fence: int


def beside(path: str, kind: str, fence: int) -> str:
    """Return a fresh hidden name beside the destination ``path``.

    Hadoop's readers skip names that start with a dot, so a folder being filled is never taken for a version.
    """
    folder, name = posixpath.split(path)
    return posixpath.join(folder, f".airflow_tf-{kind}-{fence}-{name}-{uuid.uuid4().hex[:12]}")


def hidden_beside(files: FileSystem, path: str) -> list[Hidden]:
    """Return the hidden folders of the destination ``path``."""
    folder, name = posixpath.split(path)
    found = []
    for info in files.list(folder):
        match = _HIDDEN.match(posixpath.basename(info.path))
        if match and match.group(3) == name:
            found.append(Hidden(info.path, match.group(1), int(match.group(2))))
    return found


def is_unfinished(name: str) -> bool:
    """Tell whether this is the name of a folder that was being filled; no publisher may come back to it."""
    match = _HIDDEN.match(name)
    return match is not None and match.group(1) in {NEW, SENT}


@dataclass(frozen=True, slots=True)
class Ahead:
    """Sends one growing file ahead of the publication at ``uri``."""

    uri: Uri
    files: FileSystem
    reporter: Reporter
    patience: Patience
    fence: int
    sleep: Callable[[float], None] = time.sleep

    def send(self, local: Path, name: str, size: int) -> str:
        """Send ``local``, which will have ``size`` bytes, as the file ``name`` of the version; return the folder.

        :raises PublishError: if ``local`` is deleted before it has that size: who wrote it has given up.
        """
        folder = beside(self.uri.path, SENT, self.fence)
        with local.open("rb") as file:
            self.patience(self._remove_earlier)
            self.reporter.expect(1, size)
            try:
                self.patience(lambda: self.files.make_dirs(folder))
                sent = self.patience(lambda: self._write(file.fileno(), posixpath.join(folder, name), size))
                note = json.dumps({name: sent}).encode()
                self.patience(lambda: self.files.write(posixpath.join(folder, _NOTE), [note]))
            except BaseException:
                with contextlib.suppress(StorageError):  # the publisher removes it
                    self.files.delete(folder)
                raise
        return folder

    def _remove_earlier(self) -> None:
        self.files.make_dirs(posixpath.dirname(self.uri.path))
        for hidden in hidden_beside(self.files, self.uri.path):
            if hidden.kind == SENT and hidden.fence <= self.fence:
                self.files.delete(hidden.path)

    def _write(self, descriptor: int, path: str, size: int) -> dict[str, int]:
        crc32c = 0

        def chunks() -> Iterator[bytes]:
            nonlocal crc32c
            for chunk in self._follow(descriptor, size):
                crc32c = google_crc32c.extend(crc32c, chunk)
                yield chunk
                self.reporter.tick(len(chunk))

        return {"size": self.files.write(path, chunks()), "crc32c": crc32c}

    def _follow(self, descriptor: int, size: int) -> Iterator[bytes]:
        """Yield the first ``size`` bytes of a file as they come."""
        position = 0
        while position < size:
            there = os.fstat(descriptor)
            length = min(CHUNK_BYTES, size - position)
            if there.st_size - position >= length:
                chunk = os.pread(descriptor, length, position)
                position += len(chunk)
                yield chunk
            elif there.st_nlink == 0:
                raise PublishError("what is sent ahead will not be finished", "its file is gone")
            else:
                self.sleep(_LOOK_SECONDS)


def take_over(files: FileSystem, path: str, fence: int, wanted: dict[str, dict[str, int]], folder: str) -> set[str]:
    """Rename a folder that was sent ahead to ``folder``, and return which ``wanted`` files (size, CRC32C) it has.

    Of two who try one gets it. Only what was sent under the same fence counts, and only if all of it is wanted.
    """
    for hidden in hidden_beside(files, path):
        if hidden.kind != SENT or hidden.fence != fence:
            continue
        with contextlib.suppress(StorageNotFoundError, ValueError):  # not sent to its end, or taken by another
            note_path = posixpath.join(hidden.path, _NOTE)
            note = json.loads(read_all(files, note_path))
            if _is_wanted(files, hidden.path, note, wanted):
                files.delete(note_path)  # first: whoever dies from here on leaves what none takes
                files.rename(hidden.path, folder)
                return set(note)
    return set()


def _is_wanted(files: FileSystem, folder: str, note: object, wanted: dict[str, dict[str, int]]) -> bool:
    """Tell whether a folder has the files of its note and no others, and each is wanted as it is.

    Whoever may write to the base may have written the note: a name in it may be a path that leads elsewhere.
    """
    if not isinstance(note, dict) or not note:
        return False
    if any(name not in wanted or wanted[name] != sent for name, sent in note.items()):
        return False
    there = {posixpath.basename(info.path): None if info.is_dir else info.size for info in files.list(folder)}
    return there.keys() - {_NOTE} == note.keys() and all(there[name] == wanted[name]["size"] for name in note)
