"""A large file that goes to disk while more of it is computed."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

_FLUSH_BYTES = 32 << 20


class FlushedFile:
    """A new file. Its data is flushed behind the writer's back, so that :meth:`sync` has little to wait for."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        self._file = path.open("wb")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._flush: Future[None] | None = None
        self._given_bytes = 0

    def write(self, chunk: bytes) -> None:
        """Append bytes.

        :raises OSError: if they, or earlier ones, cannot be written.
        """
        self._file.write(chunk)
        self.size += len(chunk)
        if self.size - self._given_bytes >= _FLUSH_BYTES and (self._flush is None or self._flush.done()):
            self._check()
            self._file.flush()
            self._given_bytes = self.size
            self._flush = self._thread.submit(os.fdatasync, self._file.fileno())

    def sync(self) -> None:
        """Wait until all of it is on disk.

        :raises OSError: if it, or a part of it before, could not be written.
        """
        self._check()
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; what is not synced may get lost."""
        self._thread.shutdown()  # first: its descriptor must not become another file's
        self._file.close()

    def _check(self) -> None:
        """Raise what the last flush has found: the kernel tells of a failure only once."""
        if self._flush is not None:
            self._flush.result()
