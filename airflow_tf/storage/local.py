"""Backend ``file``: this host's own file system. What it writes is on disk (fsync) when a call returns."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from airflow_tf.core.durable import sync_folder
from airflow_tf.core.errors import (
    StorageError,
    StorageExistsError,
    StorageNoSpaceError,
    StorageNotFoundError,
    StoragePermissionError,
)
from airflow_tf.storage.base import CHUNK_BYTES, FileInfo, Uri
from airflow_tf.storage.checksum import FileChecksum
from airflow_tf.storage.failures import storage_error
from airflow_tf.storage.options import StorageOptions

_KINDS: dict[int | None, type[StorageError]] = {
    errno.ENOENT: StorageNotFoundError,
    errno.EACCES: StoragePermissionError,
    errno.EPERM: StoragePermissionError,
    errno.EROFS: StoragePermissionError,
    errno.EEXIST: StorageExistsError,
    errno.ENOTEMPTY: StorageExistsError,
    errno.ENOSPC: StorageNoSpaceError,
    errno.EDQUOT: StorageNoSpaceError,
}

_NO_SPACE = "Free space, or choose a larger disk."
_TODO: dict[int | None, str] = {
    errno.EACCES: "Give the user of this process access, or choose another folder.",
    errno.EPERM: "Give the user of this process access, or choose another folder.",
    errno.EROFS: "Choose a folder on a file system that can be written.",
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
}


def local_error(error: OSError, action: str, uri: str) -> StorageError:
    """Build our error for an error of the operating system."""
    kind = _KINDS.get(error.errno, StorageError)
    todo = _TODO.get(error.errno, "")
    if not todo:
        return storage_error(kind, action, uri, error.strerror or str(error))
    return kind(f"Cannot {action} {uri}", error.strerror or str(error), todo)


class LocalFileSystem:
    """The file system of this host, through :mod:`os`."""

    def __init__(self, uri: Uri, options: StorageOptions) -> None:
        del options  # a local file system needs none
        self._uri = uri

    @contextlib.contextmanager
    def _translated(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise local_error(error, action, self._uri.at(path)) from error

    def stat(self, path: str) -> FileInfo:
        """Describe one path, following symbolic links."""
        with self._translated("read", path):
            return _info(path, os.stat(path))  # noqa: PTH116 -- paths of a file system are text here

    def list(self, path: str) -> Iterator[FileInfo]:
        """Yield the children of a directory."""
        with self._translated("list", path), os.scandir(path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed since the folder was read
                    yield _info(entry.path, _stat_entry(entry))

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Yield ``length`` bytes from ``offset`` on; a pipe or device is refused, since it may block for ever."""
        with self._translated("read", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise storage_error(StorageError, "read", self._uri.at(path), "it is not a regular file")
                file.seek(offset)
                while length > 0 and (chunk := file.read(min(CHUNK_BYTES, length))):
                    length -= len(chunk)
                    yield chunk

    def checksum(self, path: str) -> FileChecksum | None:
        """Return None: a local file system knows no checksum."""
        del path
        return None

    def write(self, path: str, chunks: Iterable[bytes]) -> int:
        """Create or replace a file and flush it to disk."""
        length = 0
        with self._translated("write", path):
            try:
                with Path(path).open("wb") as file:
                    for chunk in chunks:
                        length += file.write(chunk)
                    file.flush()
                    os.fsync(file.fileno())
            except BaseException:
                Path(path).unlink(missing_ok=True)
                raise
            sync_folder(Path(path).parent)
        return length

    def rename(self, source: str, target: str) -> None:
        """Move a file (atomically without replacing) or a directory (which replaces an empty one at most)."""
        with self._translated(f"rename {source} to", target):
            if Path(source).is_dir():
                if os.path.lexists(target):
                    raise FileExistsError(errno.EEXIST, "it exists")
                Path(source).rename(target)
            else:
                Path(target).hardlink_to(source)
                Path(source).unlink()
            sync_folder(Path(target).parent)

    def replace(self, source: str, target: str) -> None:
        """Move a file over another."""
        with self._translated(f"rename {source} to", target):
            Path(source).replace(target)
            sync_folder(Path(target).parent)

    def delete(self, path: str) -> None:
        """Delete a file or a directory with all below it."""
        with self._translated("delete", path), contextlib.suppress(FileNotFoundError):  # already gone
            if Path(path).is_dir() and not Path(path).is_symlink():
                shutil.rmtree(path)
            else:
                Path(path).unlink()

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents."""
        with self._translated("create", path):
            Path(path).mkdir(parents=True, exist_ok=True)
            sync_folder(Path(path).parent)


def _stat_entry(entry: os.DirEntry[str]) -> os.stat_result:
    """Follow a link; one that points nowhere is described itself, so that reading it fails and says so."""
    try:
        return entry.stat()
    except FileNotFoundError:
        return entry.stat(follow_symlinks=False)


def _info(path: str, found: os.stat_result) -> FileInfo:
    return FileInfo(
        path=path,
        size=found.st_size,
        is_dir=stat.S_ISDIR(found.st_mode),
        mtime_ms=found.st_mtime_ns // 1_000_000,
        file_id=f"{found.st_dev}:{found.st_ino}:{found.st_ctime_ns}",
    )
