"""Copies the newest checkpoint of a training to its destination while it goes on, so that a lost host loses little.

A process of its own with the lowest priority: the supervisor starts it with an attempt and closes its input when the
attempt has ended; it copies what is newest then, and ends. Training never waits for it. The lag is the time between
two looks and that of one upload; what it could not copy in time it leaves out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from airflow_tf.core.checkpoint import latest_complete, verify
from airflow_tf.core.errors import AirflowTfError
from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.storage.carrying import generation_uri
from airflow_tf.storage.client import carry
from airflow_tf.storage.options import StorageOptions
from airflow_tf.supervisor.results import file_tail

_LOWEST_PRIORITY = 19
_FIRST_LOOK_SECONDS = 5.0
"""Longest time between two looks before the first copy: a training may have saved just after one."""


class Carrier:
    """The copying process beside one attempt: a context manager that lets it copy what is newest at its end.

    :param log_file: where the process writes what it has copied, and what it could not.
    :param note: tells those who look at the training a line.
    """

    def __init__(self, log_file: Path, note: Callable[[str], None]) -> None:
        self._log_file, self._note = log_file, note
        self._process: subprocess.Popen[bytes] | None = None
        self._is_unneeded = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(needs_copy=True)

    def begin(self, launches: Iterable[ReplicaLaunch]) -> None:
        """Copy the checkpoints of the one among ``launches`` that says where to, if one does.

        A process that cannot be started is told to who looks at the training, which goes on without copies.
        """
        launch = next((each for each in launches if each.upload is not None), None)
        if launch is None or launch.upload is None:
            return
        job = launch.upload | {
            "folder": launch.checkpoint_folder,
            "uri": generation_uri(launch.upload["uri"], launch.generation),
        }
        try:
            self._process = process = self._start(job.pop("environment"))
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it died at once: that is told by who waits for its end
                process.stdin.write(json.dumps(job).encode() + b"\n")
                process.stdin.flush()
        except OSError as error:
            self._note(f"no checkpoint is copied while this training goes on: {error}")
            return
        self._note(f"the newest checkpoint is copied to {job['uri']} every {job['every_seconds']:g} s")
        follow = threading.Thread(target=self._follow, args=(process, asyncio.get_running_loop()), daemon=True)
        follow.start()

    def end(self, *, needs_copy: bool) -> None:
        """Let the process copy what is newest and end; end it at once where nobody needs that: a result is durable."""
        if self._process is None or self._process.stdin is None:
            return
        if not needs_copy:
            self._is_unneeded = True
            self._process.kill()  # with it goes its mover
        with contextlib.suppress(BrokenPipeError):  # it has died before
            self._process.stdin.close()

    def _start(self, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start the process; it outlives the supervisor by one upload at most.

        :param environment: what the client of the storage reads, and this supervisor has not inherited.
        """
        with self._log_file.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                env=os.environ | environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )

    def _follow(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        """Tell what the process says, and its end where that is none of its own; in a thread until it has ended."""

        def tell(text: str) -> None:
            with contextlib.suppress(RuntimeError):  # the supervisor has ended: nobody looks any more
                loop.call_soon_threadsafe(self._note, text)

        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                tell(line.decode(errors="replace").rstrip())
        code = process.wait()
        if code and not self._is_unneeded:
            tail = file_tail(self._log_file, 3)
            tell(f"checkpoints are not copied any more: the process that did it ended with {code}. It said: {tail}")


def copy_newest(folder: Path, uri: str, options: StorageOptions, done: str | None) -> str | None:
    """Copy the newest complete checkpoint of ``folder``, unless it is ``done``; return the copy's name.

    The name begins with the time of the save: a program may save under one prefix again and again. The files are kept
    first and verified then: the program may remove or replace them meanwhile. TensorFlow renames new shards into place,
    so that a link keeps the old ones, but writes a new index into the old file.

    :raises AirflowTfError: if it cannot be copied.
    """
    prefix = latest_complete(folder).prefix
    if prefix is None:
        return done
    index = Path(f"{prefix}.index")
    name, copy = Path(prefix).name, f"{index.stat().st_mtime_ns:020d}-{Path(prefix).name}"
    if copy == done:
        return done
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".carry-") as temporary:
        kept = Path(temporary) / copy
        kept.mkdir()
        shutil.copy2(index, kept)
        for file in folder.iterdir():
            if file.name.startswith(f"{name}.data-"):
                (kept / file.name).hardlink_to(file)
        verify(str(kept / name))
        where = carry(kept, uri, options=options)
    _log(f"{prefix} is at {where}")
    return copy


def _saved(folder: Path) -> set[tuple[str, int]]:
    """Return what shows that something was saved: the indices and when they were written."""
    return {(path.name, path.stat().st_mtime_ns) for path in folder.glob("*.index")}


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 (the log of a process of its own)


def _tell(channel: IO[str], text: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the supervisor has ended
        print(text.replace("\n", " "), file=channel, flush=True)


def main() -> None:
    """Copy at every look, and once more when standard input ends."""
    os.nice(_LOWEST_PRIORITY)
    job: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    options, uri, folder = StorageOptions.from_json(job["options"]), job["uri"], Path(job["folder"])
    done: str | None = None
    seen: set[tuple[str, int]] | None = None
    has_ended = has_failed = False
    while True:
        try:
            there = _saved(folder)
            if there != seen:  # else all of it would be read again to be verified
                done = copy_newest(folder, uri, options, done)
                seen = there if done is not None else None  # none is complete yet
        except (AirflowTfError, OSError) as error:
            _log(f"not copied, tried again at the next look: {error}")
            if not has_failed:
                _tell(sys.stdout, f"a checkpoint was not copied, which is tried again and not told again: {error}")
            has_failed = True
        if has_ended:
            return
        every_seconds = job["every_seconds"]
        if done is None and not has_failed:
            every_seconds = min(every_seconds, _FIRST_LOOK_SECONDS)
        has_ended = bool(select.select([sys.stdin], [], [], every_seconds)[0])


if __name__ == "__main__":
    main()
