"""A task's way to its gang's supervisor: find it, or start it, and talk to it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from airflow_tf.core.errors import SupervisorLostError
from airflow_tf.core.identity import View
from airflow_tf.core.launch import GangLaunch
from airflow_tf.core.states import ExitCause
from airflow_tf.supervisor.processes import base_environment
from airflow_tf.supervisor.protocol import LOCK_NAME, LOG_NAME, SOCKET_NAME
from airflow_tf.supervisor.results import file_tail
from airflow_tf.supervisor.scope import in_scope

CONNECT_DEADLINE_SECONDS = 30.0
_SUPERVISOR = (sys.executable, "-m", "airflow_tf.supervisor")
_RETRY_SECONDS = 0.05
_STOP_TIMEOUT_SECONDS = 1.0


class Channel:
    """One open connection to a supervisor."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._pending = b""
        self.is_open = True

    def send(self, message: dict[str, Any]) -> None:
        """Send one message.

        :raises SupervisorLostError: if the supervisor is gone.
        """
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self.is_open = False
            raise SupervisorLostError("the gang's supervisor is gone", str(error)) from error

    def poll(self, timeout_seconds: float) -> list[dict[str, Any]]:
        """Return the messages that arrived within the time; clears ``is_open`` at the end of the connection."""
        self.wait(timeout_seconds)
        *lines, self._pending = self._pending.split(b"\n")
        return [json.loads(line) for line in lines]

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for data; tell whether a whole message is there for :meth:`poll`."""
        readable, _, _ = select.select([self._socket], [], [], 0 if b"\n" in self._pending else timeout_seconds)
        if readable:
            try:
                data = self._socket.recv(65536)
            except ConnectionError:
                data = b""
            self.is_open = bool(data)
            self._pending += data
        return b"\n" in self._pending

    def close(self) -> None:
        """Detach."""
        self.is_open = False
        self._socket.close()


class GangClient:
    """Reach the supervisor of one gang on this host."""

    def __init__(self, launch: GangLaunch) -> None:
        self._launch = launch
        self.folder = Path(launch.folder)

    def connect(self, deadline_seconds: float = CONNECT_DEADLINE_SECONDS) -> Channel:
        """Return a connection, starting the supervisor if there is none.

        :raises SupervisorLostError: if none answers within the deadline.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        deadline = time.monotonic() + deadline_seconds
        while time.monotonic() < deadline:
            channel = try_connect(self.folder)
            if channel is not None:
                return channel
            self._start_if_none()
            time.sleep(_RETRY_SECONDS)
        raise SupervisorLostError(
            f"no supervisor answers for {self.folder}",
            f"waited {deadline_seconds:.0f} s; its log ends with: {file_tail(self.folder / LOG_NAME, 5) or 'nothing'}",
            "Run 'airflow tf doctor' on this host.",
        )

    def _start_if_none(self) -> None:
        """Start the supervisor if its lock is free; the lock's descriptor goes to it: lock free means none runs."""
        lock = os.open(self.folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            with (self.folder / LOG_NAME).open("ab") as log:
                process = subprocess.Popen(
                    in_scope(self._launch.settings["own_scope"], [*_SUPERVISOR, str(lock)]),
                    env=base_environment() | {"AIRFLOW_TF_RUN_FOLDER": str(self.folder)},
                    cwd="/",
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(lock,),
                    start_new_session=True,
                )
            assert process.stdin is not None
            with process.stdin:
                process.stdin.write(self._launch.dumps().encode() + b"\n")
            process.wait()  # it forks at once: the supervisor is nobody's child, and no zombie is left
        finally:
            os.close(lock)

    def wait_gone(self, deadline_seconds: float) -> bool:
        """Wait until no supervisor holds the gang's lock; tell whether that came true."""
        deadline = time.monotonic() + deadline_seconds
        while has_supervisor(self.folder):
            if time.monotonic() > deadline:
                return False
            time.sleep(_RETRY_SECONDS)
        return True


def try_connect(folder: Path, timeout_seconds: float = 5.0) -> Channel | None:
    """Connect to the socket in ``folder``; None if nobody listens."""
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_seconds)
    try:
        connection.connect(f"/proc/self/fd/{descriptor}/{SOCKET_NAME}")
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    finally:
        os.close(descriptor)
    connection.settimeout(None)
    return Channel(connection)


def stop_replica(folder: Path, replica: int, view: View, reason: str, cause: ExitCause = ExitCause.STOPPED) -> bool:
    """Ask the supervisor of the gang in ``folder`` for a stop; safe in a signal handler. False if nobody listens."""
    message = {"type": "stop", "replica": replica, "view": view.to_json(), "reason": reason, "cause": cause.value}
    try:
        channel = try_connect(folder, timeout_seconds=_STOP_TIMEOUT_SECONDS)
        if channel is None:
            return False
        channel.send(message)
    except (SupervisorLostError, TimeoutError):
        return False
    channel.close()
    return True


def has_supervisor(folder: Path) -> bool:
    """Tell whether a supervisor holds the gang's lock."""
    with contextlib.suppress(FileNotFoundError):
        lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
    return False
