"""A mover that counts its steps, and is killed or held before one of them; ``test_publish_steps.py`` starts it.

A step is a call of the file system, or what comes after a piece of a file was written. Each is a line of ``FOLDER/steps``.

Arguments: ``airflow_tf.storage.mover FOLDER kill NUMBER`` dies by SIGKILL before that step, ``… hold PATTERN`` waits
before the first step that matches until ``FOLDER/../go`` is there. Held, it goes on to report progress.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from airflow_tf.storage import mover, publishing_jobs
from airflow_tf.storage.base import FileSystem, Uri
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Reporter
from airflow_tf.storage.registry import open_file_system

FOLDER, KIND, CHOSEN = Path(sys.argv[2]), sys.argv[3], sys.argv[4]


class Stepwise:
    """A file system that tells of each step before it is made, from any thread."""

    def __init__(self, files: FileSystem, before: Callable[[str], None]) -> None:
        self._files, self._before = files, before

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._files, name)

        def call(*paths: str) -> Any:
            self._before(" ".join([name, *map(str, paths)]))
            return method(*paths)

        return call

    def write(self, path: str, chunks: Iterable[bytes]) -> int:
        self._before(f"write {path}")
        return self._files.write(path, self._pieces(path, chunks))

    def _pieces(self, path: str, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            self._before(f"piece {path}")


class Steps:
    """Counts the steps, and stops this process before the chosen one."""

    def __init__(self) -> None:
        self.reporters: list[Reporter] = []
        self._lock, self._made, self._was_held = threading.Lock(), 0, False

    def __call__(self, step: str) -> None:
        with self._lock, (FOLDER / "steps").open("a") as file:
            file.write(f"{step}\n")
            file.flush()
            if KIND == "kill" and self._made == int(CHOSEN):
                os.kill(os.getpid(), signal.SIGKILL)
            self._made += 1
            hold = KIND == "hold" and not self._was_held and re.search(CHOSEN, step)
            self._was_held = self._was_held or bool(hold)
        if hold:
            self._wait(step)

    def _wait(self, step: str) -> None:
        (FOLDER / f"{os.getpid()}.held").write_text(step)
        while not (FOLDER.parent / "go").exists():
            self.reporters[0].tick()
            time.sleep(0.05)

    def reporter(self, descriptor: int) -> Reporter:
        self.reporters.append(Reporter(descriptor))
        return self.reporters[0]

    def open(self, uri: Uri, options: StorageOptions) -> Any:
        return Stepwise(open_file_system(uri, options), self)


if __name__ == "__main__":
    steps = Steps()
    mover.Reporter = steps.reporter  # type: ignore[assignment,misc]
    publishing_jobs.open_file_system = steps.open
    sys.exit(mover.main())
