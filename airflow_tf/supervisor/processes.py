"""Processes that a supervisor starts: the zygote, and replicas forked from it or spawned.

Everything is started from the supervisor's main thread, since PDEATHSIG fires when the creating thread ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import airflow_tf
from airflow_tf.core.errors import DeclarationError, SupervisorLostError
from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.runtime.process import PARENT_VARIABLE, placeholder_environment
from airflow_tf.supervisor.results import OUTPUT_FILE, file_tail

_CHILD_KILLED = 128 + signal.SIGKILL
_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
_INHERITED_PREFIXES = ("LC_", "AIRFLOW_TF_HOME", "AIRFLOW_TF_NVML_")
_BOOTSTRAP = Path(airflow_tf.__file__).parent / "runtime" / "bootstrap.py"


def base_environment() -> dict[str, str]:
    """Return the variables that training processes inherit: an allow-list, so that nothing of Airflow leaks in."""
    inherited = {
        name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
    }
    return inherited | {"PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "1"}


class Zygote:
    """The zygote process and the conversation with it."""

    def __init__(self, python: str, environment: dict[str, str], folder: Path) -> None:
        self.environment = environment
        self._log = folder / "zygote.log"
        ours, theirs = socket.socketpair()
        variables = base_environment() | environment | placeholder_environment()
        variables |= {PARENT_VARIABLE: str(os.getpid()), "AIRFLOW_TF_RUN_FOLDER": str(folder)}
        with self._log.open("ab") as log, theirs:
            self.process = subprocess.Popen(
                [python, str(_BOOTSTRAP), "zygote", str(theirs.fileno())],
                env=variables,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._channel = ours
        self._ready: asyncio.Future[None] | None = None
        self._forks: dict[str, asyncio.Future[int]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self.is_lost = False

    async def connect(self, on_exit: Callable[[int, int], None], on_lost: Callable[[], None]) -> None:
        """Listen to the zygote from now on; ``on_exit`` gets (pid, wait status), ``on_lost`` comes once."""
        self._ready = asyncio.get_running_loop().create_future()
        reader, self._writer = await asyncio.open_connection(sock=self._channel)
        self._reading = asyncio.create_task(self._read(reader, on_exit, on_lost))

    async def _read(
        self, reader: asyncio.StreamReader, on_exit: Callable[[int, int], None], on_lost: Callable[[], None]
    ) -> None:
        with contextlib.suppress(ConnectionError):  # the same as an end of file
            async for line in reader:
                self._handle(json.loads(line), on_exit)
        self.is_lost = True
        status = await asyncio.to_thread(self.process.wait)
        error = self._death(status)
        assert self._ready is not None
        waiting: list[asyncio.Future[Any]] = [self._ready, *self._forks.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # may have no listener
        on_lost()

    def _handle(self, message: dict[str, object], on_exit: Callable[[int, int], None]) -> None:
        assert self._ready is not None
        if "ready" in message:
            self._ready.set_result(None)
        elif "forked" in message:
            self._forks.pop(str(message["launch"])).set_result(int(str(message["forked"])))
        elif "refused" in message:
            error = SupervisorLostError("the zygote refused to fork", str(message["refused"]))
            self._forks.pop(str(message["launch"])).set_exception(error)
        elif "exited" in message:
            on_exit(int(str(message["exited"])), int(str(message["status"])))

    def _death(self, status: int) -> DeclarationError | SupervisorLostError:
        if status > 0 and self._ready is not None and not self._ready.done():
            return DeclarationError(
                f"the training interpreter {self.process.args[0]!r} cannot import TensorFlow",  # type: ignore[index]
                file_tail(self._log, 5),
                "Install TensorFlow there, or name another interpreter by train.python.",
            )
        return SupervisorLostError("the zygote died", f"exit status {status}", f"Its output is in {self._log}.")

    async def wait_ready(self) -> None:
        """Wait for TensorFlow's import.

        :raises DeclarationError: if the interpreter cannot import TensorFlow.
        :raises SupervisorLostError: if the zygote died.
        """
        assert self._ready is not None
        await asyncio.shield(self._ready)

    async def fork(self, path: Path) -> int:
        """Fork a replica for the launch at ``path`` and return its pid.

        :raises SupervisorLostError: if the zygote died or refuses to fork.
        """
        await self.wait_ready()
        if self.is_lost or self._writer is None:
            raise self._death(self.process.poll() or 0)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._forks[str(path)] = future
        self._writer.write(json.dumps({"fork": str(path)}).encode() + b"\n")
        return await future

    async def close(self) -> None:
        """End the zygote; it has no replicas left."""
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()
        self.process.kill()
        await asyncio.to_thread(self.process.wait)


class ReplicaProcess:
    """One running replica: its pid, and the future of its wait status (None where nobody could read it).

    One that is forked is a child of the zygote and dies with it. ``died_at`` is when the kernel reported its death, on
    the event loop's clock: the zygote may report the deaths of several children in another order.
    """

    def __init__(self, pid: int, *, is_forked: bool = False) -> None:
        self.pid = pid
        self.is_forked = is_forked
        self.status: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self.died_at: float | None = None
        try:
            self._pidfd: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = None
            self._note_death()
        else:
            asyncio.get_running_loop().add_reader(self._pidfd, self._note_death)

    def _note_death(self) -> None:
        loop = asyncio.get_running_loop()
        self.died_at = self.died_at or loop.time()
        if self._pidfd is not None:
            loop.remove_reader(self._pidfd)

    @property
    def was_killed(self) -> bool:
        """Tell whether it, or a child of it as its exit code says, has ended by SIGKILL."""
        status = self.status.result() if self.status.done() else None
        return status is not None and (os.WTERMSIG(status) == signal.SIGKILL or os.WEXITSTATUS(status) == _CHILD_KILLED)

    def send(self, number: int) -> None:
        """Send a signal to the main process only: its data workers must live while it saves."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                signal.pidfd_send_signal(self._pidfd, number)

    def ended(self, status: int | None) -> None:
        """Record the wait status; the first one counts."""
        self._note_death()
        if not self.status.done():
            self.status.set_result(status)

    def close(self) -> None:
        """Give the pidfd back."""
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None


def spawn(python: str, launch: ReplicaLaunch, path: Path) -> ReplicaProcess:
    """Start a replica in a fresh interpreter; for what a fork of the zygote cannot give."""
    variables = base_environment() | launch.variables() | {PARENT_VARIABLE: str(os.getpid())}
    with (Path(launch.folder) / OUTPUT_FILE).open("ab") as output:
        popen = subprocess.Popen(
            [python, str(_BOOTSTRAP), "replica", str(path)],
            env=variables,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    replica = ReplicaProcess(popen.pid)
    watcher = os.pidfd_open(popen.pid)
    loop = asyncio.get_running_loop()

    def reap() -> None:
        loop.remove_reader(watcher)
        os.close(watcher)
        code = popen.wait()
        replica.ended(-code if code < 0 else code << 8)

    loop.add_reader(watcher, reap)
    return replica


def reap_adopted(own: Collection[int]) -> None:
    """Collect children that have ended and that nobody waits for: those that came to this process as a subreaper.

    Whoever started a process of this session, or one of ``own``, waits for it. The kernel is asked who has ended: a
    look through all processes of the host, every second, would be most of what an idle supervisor costs.
    """
    session = os.getsid(0)
    with contextlib.suppress(ChildProcessError, ProcessLookupError):  # no child is left; somebody else collected it
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in own or os.getsid(ended.si_pid) == session:
                return  # the next look comes after its own waiter
            os.waitpid(ended.si_pid, os.WNOHANG)
