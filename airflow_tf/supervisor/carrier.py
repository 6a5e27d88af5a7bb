"""Copies the newest checkpoints of a training to its destination while it goes on, so that a lost host loses little.

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
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from airflow_tf.core.checkpoint import latest_complete, verify
from airflow_tf.core.errors import AirflowTfError
from airflow_tf.storage.client import carry
from airflow_tf.storage.options import StorageOptions
from airflow_tf.supervisor.attempt import Alarm, Attempt

_LOWEST_PRIORITY = 19


class Carrier:
    """Runs the copying process beside an attempt; a watchdog that never raises an alarm.

    :param log_file: where the process writes what it has copied, and what it could not.
    """

    def __init__(self, log_file: Path) -> None:
        self._log_file = log_file

    async def watch(self, attempt: Attempt) -> Alarm:
        """Copy until the attempt has ended; cancelled then."""
        launches = [run.launch for run in attempt.runs.values() if run.launch.upload is not None]
        jobs = [{"folder": launch.checkpoint_folder, **(launch.upload or {})} for launch in launches]
        for job in jobs:
            attempt.note(f"the newest checkpoint is copied to {job['uri']} every {job['every_seconds']:g} s")
        channel = self._start()
        try:
            with contextlib.suppress(BrokenPipeError):  # it died at once: its log says why, and training goes on
                channel.write(json.dumps(jobs).encode() + b"\n")
                channel.flush()
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(BrokenPipeError):  # it has died before
                channel.close()  # tells the process to end, too
        raise AssertionError("unreachable: a watchdog without an alarm is cancelled")

    def _start(self) -> IO[bytes]:
        """Start the process and return its standard input; it outlives the supervisor by one upload at most."""
        with self._log_file.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        assert process.stdin is not None
        return process.stdin


def copy_newest(folder: Path, uri: str, options: StorageOptions, done: str | None) -> str | None:
    """Copy the newest complete checkpoint of ``folder``, unless it is ``done``; return the copy's name.

    The name begins with the time of the save: a program may save under one prefix again and again. The files are
    linked first and verified then: the program may remove or replace them meanwhile.

    :raises AirflowTfError: if it cannot be copied.
    """
    prefix = latest_complete(folder).prefix
    if prefix is None:
        return done
    saved, name = Path(f"{prefix}.index").stat().st_mtime_ns, Path(prefix).name
    copy = f"{saved:020d}-{name}"
    if copy == done:
        return done
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".carry-") as temporary:
        linked = Path(temporary) / copy
        linked.mkdir()
        for file in folder.iterdir():
            if file.name.startswith((f"{name}.index", f"{name}.data-")):
                (linked / file.name).hardlink_to(file)
        verify(str(linked / name))
        where = carry(linked, uri, options=options)
    print(f"{prefix} is at {where}", flush=True)  # noqa: T201 (its output is its log)
    return copy


def _saved(folder: Path) -> set[tuple[str, int]]:
    """Return what shows that something was saved: the indices and when they were written."""
    return {(path.name, path.stat().st_mtime_ns) for path in folder.glob("*.index")}


def main() -> None:
    """Copy at every look, and once more when standard input ends."""
    os.nice(_LOWEST_PRIORITY)
    jobs: list[dict[str, Any]] = json.loads(sys.stdin.buffer.readline())
    done: dict[str, str | None] = {}
    seen: dict[str, set[tuple[str, int]]] = {}
    ended = False
    while True:
        for job in jobs:
            options, uri, folder = StorageOptions.from_json(job["options"]), job["uri"], Path(job["folder"])
            try:
                there = _saved(folder)
                if there != seen.get(uri):  # else all of it would be read again to be verified
                    done[uri], seen[uri] = copy_newest(folder, uri, options, done.get(uri)), there
            except (AirflowTfError, OSError) as error:
                print(f"not copied, tried again at the next look: {error}", flush=True)  # noqa: T201 (its log)
        if ended:
            return
        ended = bool(select.select([sys.stdin], [], [], min(job["every_seconds"] for job in jobs))[0])


if __name__ == "__main__":
    main()
