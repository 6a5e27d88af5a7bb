"""Sends the average to its destination while it is made: whoever publishes finds most of it there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from airflow_tf.core.errors import PublishError, StorageError
from airflow_tf.operators.candidates import DATA
from airflow_tf.storage.client import send_ahead
from airflow_tf.storage.options import StorageOptions


@dataclass(slots=True)
class Sending:
    """What goes to the version at ``uri``. What cannot be sent is told and left to the publisher.

    A context manager that waits at its end until all that was begun is sent, or has failed.

    :param fence: of the result, which the publisher must have too.
    :param least_bytes: of a file that is sent; another process is not worth it for less.
    """

    uri: str
    options: StorageOptions
    fence: int
    note: Callable[[str], None]
    least_bytes: int = 64 << 20
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    def begin(self, data_file: Path, size: int) -> None:
        """Follow ``data_file`` until it has ``size`` bytes, or is deleted; a second one is left to the publisher."""
        if size < self.least_bytes or self._threads:
            return
        descriptor = os.open(data_file, os.O_RDONLY | os.O_CLOEXEC)
        thread = threading.Thread(target=self._send, args=(descriptor, size), name="send-ahead", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _send(self, descriptor: int, size: int) -> None:
        file = Path(f"/proc/{os.getpid()}/fd/{descriptor}")  # its name may change before it is opened
        try:
            send_ahead(file, self.uri, options=self.options, fence=self.fence, name=DATA, size=size)
        except (StorageError, PublishError) as error:
            self.note(f"nothing was sent while the average was made: {error}")
        finally:
            os.close(descriptor)
