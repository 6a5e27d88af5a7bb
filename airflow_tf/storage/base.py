"""What staging and publishing ask of a file system, and how its URIs are written."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import unquote

from airflow_tf.core.errors import DeclarationError, StorageNotFoundError
from airflow_tf.storage.checksum import FileChecksum

CHUNK_BYTES = 1 << 20
"""Size of the pieces in which the backends read and write."""

_URI = re.compile(r"^([a-z][a-z0-9+.-]*)://([^/]*)(/.*)$", re.DOTALL)
_NEXT_URI = re.compile(r",\s*(?=[a-z][a-z0-9+.-]*://)")


def one_text(sources: str | Sequence[str]) -> str:
    """Write several URIs as one text, with commas, as Hadoop does."""
    return sources if isinstance(sources, str) else ",".join(sources)


@dataclass(frozen=True, slots=True)
class Uri:
    """A URI taken apart: scheme, authority (``host:port``, a name service or nothing) and absolute path.

    ``others`` are the paths of what else is named, on the same file system.
    """

    scheme: str
    authority: str
    path: str
    others: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Uri:
        """Take ``text`` apart. As in Hadoop a path is plain text (``?`` is a glob, ``=`` stays ``=``).

        Only ``file`` URIs are percent-decoded, because :meth:`pathlib.Path.as_uri` encodes them.

        :param text: one URI, or several with commas between them.
        :raises DeclarationError: if one is not ``scheme://authority/path``, or they lie on different file systems.
        """
        first, *others = (cls._parse_one(part) for part in _NEXT_URI.split(text))
        for other in others:
            if (other.scheme, other.authority) != (first.scheme, first.authority):
                raise DeclarationError(
                    f"{first} and {other} lie on different file systems",
                    "what is staged together comes from one",
                    "Declare an input for each.",
                )
        return replace(first, others=tuple(other.path for other in others)) if others else first

    @classmethod
    def _parse_one(cls, text: str) -> Uri:
        match = _URI.match(text)
        if match is None:
            raise DeclarationError(
                f"{text!r} is not a storage URI",
                "a scheme and an absolute path are needed",
                "Write it like hdfs://namenode:8020/data/*.csv, webhdfs://namenode:9870/data or file:///data.",
            )
        scheme, authority, path = match.groups()
        if scheme == "file":
            path = unquote(path)
        return cls(scheme, authority, posixpath.normpath(re.sub("/+", "/", path)))

    def at(self, path: str) -> str:
        """Return the URI text of another path of the same file system."""
        return f"{self.scheme}://{self.authority}{path}"

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths that are named."""
        return (self.path, *self.others)

    def __str__(self) -> str:
        return one_text([self.at(path) for path in self.paths])


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file or directory: absolute path, size in bytes, modification time in ms.

    ``file_id`` changes when a file is replaced by another of the same size and time; empty where a backend has none.
    """

    path: str
    size: int
    is_dir: bool
    mtime_ms: int
    file_id: str = ""

    @property
    def version(self) -> tuple[int, int, str]:
        """What must stay the same while the file is read."""
        return (self.size, self.mtime_ms, self.file_id)


class FileSystem(Protocol):
    """A file system seen through absolute paths. Safe to use from several threads, never across a fork.

    Every method raises a subclass of :class:`~airflow_tf.core.errors.StorageError` that names the URI.
    """

    def stat(self, path: str) -> FileInfo:
        """Describe one path; :class:`StorageNotFoundError` if it is missing."""
        ...

    def list(self, path: str) -> Iterator[FileInfo]:
        """Yield the children of a directory in no particular order."""
        ...

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Yield ``length`` bytes from ``offset`` on; fewer if the file is shorter."""
        ...

    def checksum(self, path: str) -> FileChecksum | None:
        """Return the file's checksum as its server knows it; None where the client compares it itself, or none is."""
        ...

    def write(self, path: str, chunks: Iterable[bytes]) -> int:
        """Create or replace a file durably and return its length; its directory must exist.

        On any failure the file is deleted: a partial one is never left.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory; :class:`StorageExistsError` if ``target`` exists."""
        ...

    def replace(self, source: str, target: str) -> None:
        """Move a file over ``target``, if there is one, in one step: a reader sees the old or the new."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file or a directory with all below it; a missing one is fine."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents; an existing one is fine."""
        ...


def exists(files: FileSystem, path: str) -> bool:
    """Tell whether ``path`` is there."""
    try:
        files.stat(path)
    except StorageNotFoundError:
        return False
    return True


def read_all(files: FileSystem, path: str) -> bytes:
    """Return a small file's content."""
    return b"".join(files.read(path, 0, files.stat(path).size))
