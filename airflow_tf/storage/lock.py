"""A lock between processes that make the same folder."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from airflow_tf.storage.local import local_error

_POLL_SECONDS = 0.2


@contextlib.contextmanager
def locked(folder: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of ``folder``, a file beside it, which ends with this process; make its parents if need be.

    Waiting has no limit, since the holder's work has one; ``on_wait`` is called once if there is any.

    :raises StorageError: if nothing can be written there.
    """
    with _open(folder) as lock:
        said = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not said:
                    on_wait()
                    said = True
                time.sleep(_POLL_SECONDS)
        yield


def _open(folder: Path) -> IO[str]:
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder.with_name(f".{folder.name}.lock").open("w")
    except OSError as error:
        raise local_error(error, "write into", str(folder.parent)) from error
