"""A ledger on a PostgreSQL server, for several hosts."""

from __future__ import annotations

import contextlib
import math
import os
import random
import socket
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, ClassVar, Self

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError

from airflow_tf.core.errors import LedgerError
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.engine import Database
from airflow_tf.ledger.prepared import POSTGRESQL, Cursor

EPOCH = "postgresql"
"""One epoch for good: the server's clock goes on over the boots of all hosts, its own included."""

_WRITER_LOCK = 0x6169_7266_7466  # any number, the same in every version: it names the ledger's advisory lock
_CONTENTION_PAUSE_SECONDS = (0.0, 0.03)
_LOST_PAUSE_SECONDS = (0.2, 0.6)
_SHORTEST_CONNECT_SECONDS = 2  # libpq's own limit
_LOCKED = frozenset({"40001", "40P01", "55P03"})  # serialization failure, deadlock, lock timeout
_STOPPED = frozenset({"53300", "57P01", "57P02", "57P03"})  # too many clients, shut down, crashed, not started yet


class PostgresDatabase(Database):
    """PostgreSQL through psycopg.

    Writers take one advisory lock as their first statement and hold it until they have committed. They run READ
    COMMITTED, so every statement after it sees all that earlier writers did; under REPEATABLE READ or SERIALIZABLE the
    statement that waits would fix what is seen *before* the lock is had. So writers come one after the other, as on
    SQLite, and the rules that are tested there hold here. SERIALIZABLE without the lock would be right too, but under
    contention it aborts and repeats transactions, with no bound on how often one loses. Readers take no lock.

    Time runs out three times. The server ends a statement, a wait for a lock, and a transaction whose client is
    silent (else a host that lost its power would keep the lock). A server that hangs does none of that: a timer here
    shuts the connection.
    """

    is_of_one_host: ClassVar[bool] = False
    todo: ClassVar[str] = (
        "Check that the server runs and is reachable from this host, and look in its pg_stat_activity for who holds"
        " its locks."
    )

    def __init__(self, url: URL, shown: str, deadline_seconds: float) -> None:
        try:
            engine = create_engine(
                url.set(drivername="postgresql+psycopg"),
                isolation_level="READ COMMITTED",  # named: the server's or the role's default may be another one
                pool_size=1,  # a process keeps one connection: a server has few, and every task that runs has one
                max_overflow=-1,
                connect_args={
                    "connect_timeout": max(_SHORTEST_CONNECT_SECONDS, math.ceil(deadline_seconds)),
                    "fallback_application_name": "airflow_tf",
                    "prepare_threshold": None,  # a pooler between us and the server may not keep statements
                },
            )
        except ModuleNotFoundError as error:
            raise LedgerError(
                f"the ledger {shown} needs psycopg", str(error), "Install airflow-tf[postgres] on every host."
            ) from error
        milliseconds = max(1, round(deadline_seconds * 1000))
        self._begin_writing = _BEGIN_WRITING.format(milliseconds, milliseconds + 500)
        super().__init__(shown, engine, POSTGRESQL, begin_reading=[_LIMIT.format(milliseconds, milliseconds + 500)])
        self.reading = self.reading.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._calls = threading.local()
        event.listen(engine, "connect", self._watch, insert=True)  # before SQLAlchemy's own first look at the server
        event.listen(engine, "checkout", self._watch)

    def clock(self, connection: Connection) -> Clock:
        """Return the server's clock, read once per transaction."""
        return _clock_at(float(connection.exec_driver_sql(_NOW).scalar_one()))

    def begin(self, driver: Any, *, is_passing: bool) -> Clock:  # noqa: ANN401 (psycopg is not imported)
        """Take the lock; the clock is read when it is had."""
        driver.execute(self._begin_writing + (_BE_QUICK if is_passing else _BE_DURABLE))
        ((now,),) = driver.execute(_TAKE_LOCK).fetchall()
        return _clock_at(float(now))

    def run(self, driver: Any, text: str, values: Mapping[str, Any]) -> Cursor:  # noqa: ANN401 (psycopg is not imported)
        """Run a statement."""
        cursor: Cursor = driver.execute(text, values)
        return cursor

    def is_locked(self, error: DBAPIError) -> bool:
        """Tell whether a lock was not had in time, or the transaction gave way to another one."""
        return _sqlstate(error) in _LOCKED

    def pause_seconds(self, error: DBAPIError) -> float | None:
        """Wait for other transactions and, with longer pauses, for a server that is started again."""
        state = _sqlstate(error)
        if state in _LOCKED:
            return random.uniform(*_CONTENTION_PAUSE_SECONDS)  # noqa: S311 (no secret)
        has_no_answer = state is None and isinstance(error, OperationalError)
        if has_no_answer or error.connection_invalidated or state in _STOPPED:
            return random.uniform(*_LOST_PAUSE_SECONDS)  # noqa: S311 (no secret)
        return None

    @contextlib.contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Shut the connections that this thread uses for the call when its time is over."""
        with _Watch(seconds + 1.0) as watch:  # the server's own limits come first: they say what was waited for
            self._calls.watch = watch
            try:
                yield
            finally:
                self._calls.watch = None

    def _watch(self, connection: Any, *_: object) -> None:  # noqa: ANN401 (psycopg is not imported here)
        watch: _Watch | None = getattr(self._calls, "watch", None)
        if watch is not None:
            watch.add(connection.pgconn.socket)


class _Watch:
    """Shut the sockets of one call's connections after some seconds."""

    def __init__(self, seconds: float) -> None:
        self._guard = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._is_over = False
        self._timer = threading.Timer(seconds, self._shut)
        self._timer.daemon = True

    def add(self, descriptor: int) -> None:
        """Watch a connection, through a descriptor of our own: its number cannot be given to another file."""
        with self._guard:
            self._sockets.append(socket.socket(fileno=os.dup(descriptor)))
        if self._is_over:
            self._shut()

    def _shut(self) -> None:
        with self._guard:
            self._is_over = True
            for each in self._sockets:
                _shut(each)

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._guard:
            for each in self._sockets:
                each.close()
            self._sockets.clear()


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # its other end has closed it already


_LIMIT = (
    "SELECT set_config('lock_timeout', '{0}', true),"
    " set_config('statement_timeout', '{1}', true),"  # later: a lock is the better reason
    " set_config('idle_in_transaction_session_timeout', '{0}', true)"
)
_BEGIN_WRITING = _LIMIT + ", set_config('synchronous_commit', "
_BE_QUICK = "'off', true)"
_BE_DURABLE = (
    # An outcome that was recorded survives a crash of the server, also where a role was told to be quicker.
    "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END,"
    " true)"
)
_NOW = "SELECT extract(epoch FROM clock_timestamp())"
_TAKE_LOCK = f"{_NOW} FROM (SELECT pg_advisory_xact_lock({_WRITER_LOCK}) OFFSET 0) AS held"  # the clock when it is had


def _clock_at(now: float) -> Clock:
    return Clock(EPOCH, lambda: now, lambda: datetime.fromtimestamp(now, UTC))


def _sqlstate(error: DBAPIError) -> str | None:
    return getattr(error.orig, "sqlstate", None)
