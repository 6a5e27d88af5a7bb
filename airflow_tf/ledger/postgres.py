"""A ledger on a PostgreSQL server, for several hosts."""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, ClassVar, TypeVar

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError

from airflow_tf.core.errors import LedgerError
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.engine import Database, Writing
from airflow_tf.ledger.prepared import POSTGRESQL, Step, psycopg_parameter

T = TypeVar("T")
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
    silent (else a host that lost its power would keep the lock). A server that hangs does none of that: who waits here
    closes the connection.
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
                isolation_level="AUTOCOMMIT",  # a writer sends its BEGIN together with its first statements
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
        super().__init__(shown, engine, begin_reading=[_LIMIT.format(milliseconds, milliseconds + 500)])
        self.reading = self.reading.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._calls = threading.local()
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "checkout", self._bound)

    def clock(self, connection: Connection) -> Clock:
        """Return the server's clock, read once per transaction."""
        return _clock_at(float(connection.exec_driver_sql(_NOW).scalar_one()))

    def begin(self, driver: Any, clock: Clock | None, *, is_passing: bool) -> Writing:  # noqa: ANN401 (psycopg's)
        """Take the lock with the first statement; the clock is read when it is had."""
        return _Writing(driver, self._begin_writing + (_BE_QUICK if is_passing else _BE_DURABLE), clock)

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
        """Close the connection that this thread uses for the call when its time is over."""
        self._calls.until_seconds = time.monotonic() + seconds + 1.0  # the server's own say what was waited for
        try:
            yield
        finally:
            self._calls.until_seconds = math.inf

    def _connect(self, _dialect: object, _record: object, arguments: Any, named: Any) -> Any:  # noqa: ANN401 (psycopg's)
        connection = _connection_class().connect(*arguments, **named)
        self._bound(connection)
        return connection

    def _bound(self, connection: Any, *_: object) -> None:  # noqa: ANN401 (psycopg's)
        connection.until_seconds = getattr(self._calls, "until_seconds", math.inf)


class _Writing(Writing):
    """A transaction whose statements go to the server together: several in one message, with begin and commit.

    The values stand in the text, for only a message without parameters may have more than one statement. Statements
    that are sent with the begin cannot know the time at which the lock is had: they read it there.
    """

    def __init__(self, driver: Any, limits: str, clock: Clock | None) -> None:  # noqa: ANN401 (psycopg's)
        self._driver = driver
        self._unsent = [_BEGIN, limits, _TAKE_LOCK]
        self._own_clock = clock
        self._found: Clock | None = None

    def clock(self) -> Clock:
        if self._found is None:
            self.run([])
        assert self._found is not None
        return self._own_clock or self._found

    def run(self, steps: Sequence[Step], *, is_last: bool = False) -> list[list[Any]]:
        clock = self._own_clock
        dialect = _TIMED if clock is None else POSTGRESQL
        values = {} if clock is None else clock.values()
        cursor = _client_cursor(self._driver)
        texts = [cursor.mogrify(*step.put(dialect, values)) for step in steps]
        first = self._unsent
        cursor.execute(";".join([*first, *texts, *(["COMMIT"] if is_last else [])]))
        if first:
            self._unsent = []
            for _ in first[1:]:
                cursor.nextset()
            ((now,),) = cursor.fetchall()
            self._found = _clock_at(float(now))
            cursor.nextset()
        found = []
        for step in steps:
            found.append(step.statement.rows_of(cursor))
            cursor.nextset()
        return found

    def commit(self) -> None:
        self._driver.commit()


def _client_cursor(driver: Any) -> Any:  # noqa: ANN401 (psycopg's)
    from psycopg import ClientCursor  # noqa: PLC0415 (an extra)

    return ClientCursor(driver)


@cache
def _connection_class() -> Any:  # noqa: ANN401 (psycopg's)
    """Return a connection that waits for the server until a time, and is closed when that is over.

    A server that hangs keeps its own deadlines no more. A thread that watches each call cost as much as all else that a
    client does for it.
    """
    import psycopg  # noqa: PLC0415 (an extra)

    class Bounded(psycopg.Connection[Any]):
        until_seconds = math.inf

        def wait(self, gen: Generator[Any, Any, T], *args: Any, **named: Any) -> T:
            return super().wait(self._bounded(gen), *args, **named)

        def _bounded(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
            """Hand on what is waited for; nothing is ready when it was waited for some while."""
            try:
                awaited = next(gen)
                while True:
                    ready = yield awaited
                    if not ready and time.monotonic() > self.until_seconds:
                        self.close()
                        raise psycopg.OperationalError("no answer before the deadline of the call")
                    awaited = gen.send(ready)
            except StopIteration as end:
                found: T = end.value
                return found

    return Bounded


_LIMIT = (
    "SELECT set_config('lock_timeout', '{0}', true),"
    " set_config('statement_timeout', '{1}', true),"  # later: a lock is the better reason
    " set_config('idle_in_transaction_session_timeout', '{0}', true)"
)
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"  # named: the server's or the role's default may differ
_BEGIN_WRITING = _LIMIT + ", set_config('synchronous_commit', "
_BE_QUICK = "'off', true)"
_BE_DURABLE = (
    # An outcome that was recorded survives a crash of the server, also where a role was told to be quicker.
    "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END,"
    " true)"
)
_NOW = "SELECT extract(epoch FROM clock_timestamp())"
_TAKE_LOCK = (  # the clock is read when it is had, and kept for the statements that are sent together with this one
    "SELECT set_config('airflow_tf.now', CAST(extract(epoch FROM clock_timestamp()) AS text), true)"  # noqa: S608
    f" FROM (SELECT pg_advisory_xact_lock({_WRITER_LOCK}) OFFSET 0) AS held"  # a constant
)
_KEPT_NOW = "CAST(current_setting('airflow_tf.now') AS double precision)"
_OF_CLOCK = {
    "now": _KEPT_NOW,
    "epoch": f"'{EPOCH}'",
    "at": f"to_char(to_timestamp({_KEPT_NOW}) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"+00:00\"')",
}
_TIMED = replace(
    POSTGRESQL, name="postgresql, timed", parameter=lambda name: _OF_CLOCK.get(name) or psycopg_parameter(name)
)


def _clock_at(now: float) -> Clock:
    return Clock(EPOCH, lambda: now, lambda: datetime.fromtimestamp(now, UTC))


def _sqlstate(error: DBAPIError) -> str | None:
    return getattr(error.orig, "sqlstate", None)
