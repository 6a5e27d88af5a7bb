"""A real PostgreSQL on this machine for tests.

::

    with PostgresServer() as server:
        url = server.create_database()  # postgresql+psycopg://postgres:…@127.0.0.1:23456/test_1
        server.pause()

From a shell, ``python -m airflow_tf.testing.postgres run -- COMMAND`` runs COMMAND with ``AIRFLOW_TF_POSTGRES`` set to
the URL of an empty database. Needs the server's programs (Debian: ``postgresql``) and ``airflow-tf[postgres]``.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import itertools
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import psutil

from airflow_tf.core.errors import AirflowTfError
from airflow_tf.testing.private import free_ports, make_folder, remove_abandoned_folders, run_beside

URL_VARIABLE = "AIRFLOW_TF_POSTGRES"
"""Environment variable in which ``run`` hands the URL of a database to its command."""

_PREFIX = "airflow_tf-postgres-"
_DEBIAN = Path("/usr/lib/postgresql")
_PASSWORD_FILE = "password"  # noqa: S105 (a file's name)
_USERS = ("postgres", "nobody")
_STOP_SECONDS = 10.0
_TAIL_BYTES = 2000
# As a test's server: no socket file, no shared memory that outlives it, nothing forced to a disk that is thrown away.
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "dynamic_shared_memory_type": "mmap",
    "fsync": "off",
}
# The kernel sends the signal (an immediate shutdown, which removes shared memory) when the thread that started the
# server ends; the comparison catches an owner that died before setpriv asked for it.
_DIE_WITH_OWNER = ("--pdeathsig", "QUIT", "--", "sh", "-c", 'test "$PPID" = "$1" && shift && exec "$@"', "sh")


class PostgresServer:
    """PostgreSQL on a free loopback port, with a random password, in a private folder.

    It dies with the thread that called :meth:`start`, so call it from the main thread. PostgreSQL refuses to run as
    root: there it runs as the user ``postgres``, or ``nobody``. A folder left by a killed test process is removed by
    the next server.

    :param settings: settings of the server; ``fsync`` is off unless named here.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, *, start_seconds: float = 60.0) -> None:
        self._settings = _SETTINGS | dict(settings or {})
        self._start_seconds = start_seconds
        self._owner = os.getpid()
        self._password = secrets.token_urlsafe(12)
        self._numbers = itertools.count(1)
        self._folder: Path | None = None
        self._lock: IO[str] | None = None
        self._port = 0
        self._programs = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        """Private folder with the data and ``log``."""
        if self._folder is None:
            raise AirflowTfError("The test PostgreSQL is not running", todo="Call start() first.")
        return self._folder

    @property
    def pid(self) -> int:
        """Process id of the server."""
        if self._process is None:
            raise AirflowTfError("The test PostgreSQL is not running", todo="Call start() first.")
        return self._process.pid

    def url(self, database: str = "postgres") -> str:
        """Return the SQLAlchemy URL of a database."""
        return f"postgresql+psycopg://postgres:{self._password}@127.0.0.1:{self._port}/{database}"

    def start(self) -> Self:
        """Make a new cluster of databases, start the server and wait until it serves.

        :raises AirflowTfError: if its programs are missing or it is not ready in time.
        """
        self._programs = _find_programs()
        remove_abandoned_folders(_PREFIX)
        self._folder, self._lock = make_folder(_PREFIX)
        atexit.register(self.stop)
        try:
            self._initialize()
            self._port = free_ports(["postgres"])["postgres"]
            self.launch()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server and remove the folder; does nothing if it does not run or in a forked child."""
        if self._owner != os.getpid():
            return
        atexit.unregister(self.stop)
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def kill(self) -> None:
        """End the server as by a crash: nothing is said to clients, nothing is written."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self.resume()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def launch(self) -> None:
        """Start a killed server again on its port and wait until it serves.

        :raises AirflowTfError: if it is not ready in time.
        """
        settings = {**self._settings, "port": str(self._port)}
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self.folder / "data"), *arguments]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_as_user(), *_DIE_WITH_OWNER, str(os.getpid()), *command],
                cwd="/",
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait_ready()

    def pause(self) -> None:
        """Stop the server and its sessions (SIGSTOP): connections are accepted by the kernel, and nothing answers."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused server."""
        self._signal_all(signal.SIGCONT)

    def create_database(self) -> str:
        """Make an empty database and return its URL."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database made by :meth:`create_database`; sessions in it are ended."""
        self.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def execute(self, statement: str) -> None:
        """Run a statement as the superuser, outside a transaction."""
        with self._connect() as connection:
            connection.execute(statement)

    def _connect(self) -> Any:  # noqa: ANN401 (psycopg is an extra)
        import psycopg  # noqa: PLC0415 (an extra)

        url = self.url().replace("+psycopg", "", 1)
        return psycopg.connect(url, autocommit=True, connect_timeout=5)

    def _initialize(self) -> None:
        password = self.folder / _PASSWORD_FILE
        password.touch(mode=0o600)
        password.write_text(self._password)
        if user := _user():
            for path in (self.folder, password):
                os.chown(path, user.pw_uid, user.pw_gid)
        command = [str(self._programs / "initdb"), "-D", str(self.folder / "data"), "--username=postgres"]
        command += ["--auth=scram-sha-256", f"--pwfile={password}", "--encoding=UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            [*_as_user(), "--", *command],
            cwd="/",
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=self._start_seconds,
            check=False,
        )
        if done.returncode != 0:
            raise AirflowTfError("The test PostgreSQL was not set up", (done.stdout + done.stderr)[-_TAIL_BYTES:])
        password.unlink()

    def _wait_ready(self) -> None:
        import psycopg  # noqa: PLC0415 (an extra)

        deadline = time.monotonic() + self._start_seconds
        while True:
            try:
                self._connect().close()
            except psycopg.OperationalError as error:
                if self._process is not None and self._process.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                tail = (self.folder / "log").read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
                raise AirflowTfError("The test PostgreSQL does not serve", f"its log ends with:\n{tail}") from error
            return

    def _signal_all(self, number: signal.Signals) -> None:
        server = psutil.Process(self.pid)
        for process in (server, *server.children()):
            with contextlib.suppress(psutil.NoSuchProcess):  # a session has ended meanwhile
                process.send_signal(number)


def _find_programs() -> Path:
    """Return the folder of ``initdb`` and ``postgres``: on PATH, or where Debian has its newest version.

    :raises AirflowTfError: if there is none.
    """
    on_path = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    debian = sorted(_DEBIAN.glob("*/bin"), key=lambda folder: _version(folder.parent.name), reverse=True)
    for folder in (*on_path, *debian):
        if all(os.access(folder / program, os.X_OK) for program in ("initdb", "postgres")):
            return folder
    raise AirflowTfError(
        "PostgreSQL's initdb and postgres are missing",
        f"looked on PATH and in {_DEBIAN}",
        "Install them, on Debian with 'apt-get install postgresql'.",
    )


def _version(name: str) -> int:
    return int(name) if name.isdigit() else 0


def _user() -> pwd.struct_passwd | None:
    """Return the user to run as; None to stay who we are."""
    if os.geteuid() != 0:
        return None
    known = {user.pw_name: user for user in pwd.getpwall()}
    return next(known[name] for name in _USERS if name in known)


def _as_user() -> list[str]:
    user = _user()
    if user is None:
        return ["setpriv"]
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _environment() -> dict[str, str]:
    return {"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)}


def main(arguments: list[str] | None = None) -> int:
    """Run ``run -- COMMAND`` and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m airflow_tf.testing.postgres", description="A real PostgreSQL for tests."
    )
    actions = parser.add_subparsers(dest="action", required=True)
    run = actions.add_parser("run", help=f"start a server, run COMMAND with {URL_VARIABLE} set, stop the server")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    chosen = parser.parse_args(arguments)
    command = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
    if not command:
        run.error("COMMAND is missing")
    try:
        return run_beside(PostgresServer(), command, lambda server: {URL_VARIABLE: server.create_database()})
    except AirflowTfError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
