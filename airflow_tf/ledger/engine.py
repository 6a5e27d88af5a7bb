"""Transactions that end within a deadline, whatever the database and other processes do."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from sqlalchemy import Connection, Engine, PoolProxiedConnection, event
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay

from airflow_tf.core.errors import LedgerError, LedgerUnavailableError
from airflow_tf.ledger.clock import Clock, boot_seconds
from airflow_tf.ledger.prepared import Prepared, Step

DEADLINE_SECONDS = 10.0
T = TypeVar("T")


class Writing(ABC):
    """One writing transaction as a driver does it, beside which no other one writes."""

    @abstractmethod
    def clock(self) -> Clock:
        """Return the ledger's clock in the transaction; it has begun."""

    @abstractmethod
    def run(self, steps: Sequence[Step], *, is_last: bool = False) -> list[list[Any]]:
        """Run statements one after the other, in one round trip where there are any; return the rows of each.

        :param is_last: whether to commit thereafter, in the same round trip.
        """

    @abstractmethod
    def commit(self) -> None:
        """End the transaction; its connection is rolled back without that, when it goes back to its pool."""


class Database(ABC):
    """One kind of database, as :class:`Transactions` needs it.

    :param shown: where the ledger is, without secrets.
    :param engine: its connections begin no transaction by themselves, or do it at their first statement.
    :param begin_reading: begin a transaction that sees one consistent state.
    """

    is_of_one_host: ClassVar[bool]
    """Whether all its users are on the database's own host, and end with it."""

    todo: ClassVar[str]
    """What an operator does when the database does not answer."""

    def __init__(self, shown: str, engine: Engine, *, begin_reading: Sequence[str]) -> None:
        self.shown = shown
        event.listen(engine, "begin", _begin)
        self.plain = engine
        self.reading = engine.execution_options(begin=begin_reading)

    @abstractmethod
    def clock(self, connection: Connection) -> Clock:
        """Return the ledger's clock within a transaction that reads."""

    @abstractmethod
    def begin(self, driver: Any, clock: Clock | None, *, is_passing: bool) -> Writing:  # noqa: ANN401 (a connection)
        """Begin a transaction, at its first statement at the latest.

        :param clock: another clock than the database's, for tests.
        :param is_passing: whether a power cut may undo it, as long as no later one was to survive it.
        """

    @abstractmethod
    def is_locked(self, error: DBAPIError) -> bool:
        """Tell whether other transactions are in the way."""

    @abstractmethod
    def pause_seconds(self, error: DBAPIError) -> float | None:
        """Return how long to wait before another try; None if waiting does not help."""

    def deadline(self, _seconds: float) -> AbstractContextManager[object]:
        """Cut off what runs longer; nothing to do for a database that never keeps a call waiting."""
        return contextlib.nullcontext()

    def turn(self, _seconds: float) -> AbstractContextManager[object]:
        """Wait for the turn to write, where the database does not let writers wait in the order in which they came."""
        return contextlib.nullcontext()

    def migration_lock(self) -> AbstractContextManager[object]:
        """Exclude other migrations, where the lock of a writing transaction does not suffice."""
        return contextlib.nullcontext()

    def prepare(self) -> None:  # noqa: B027 (most databases need nothing)
        """Set up a new database outside a transaction, before its first migration."""


class Transaction:
    """One writing transaction: prepared statements on its connection, and an ORM session on it for what is rare.

    A session costs a claim of devices more than the database does, and so does each round trip to a server. What every
    claim does is done by :mod:`airflow_tf.ledger.statements`, several at a time; what a session has loaded must not be
    changed by them afterwards.
    """

    def __init__(
        self, database: Database, connection: PoolProxiedConnection, clock: Clock | None, *, is_passing: bool
    ) -> None:
        self._database = database
        self._pooled = connection
        self._writing = database.begin(connection.driver_connection, clock, is_passing=is_passing)
        self._own_clock = clock
        self._is_over = False

    def host_now(self) -> float:
        """Return this host's boot clock, without a look at the ledger's."""
        return self._own_clock.host_now() if self._own_clock is not None else boot_seconds()

    @property
    def clock(self) -> Clock:
        """The ledger's clock."""
        return self._writing.clock()

    @cached_property
    def session(self) -> Session:
        """A session that begins and ends nothing of its own."""
        self._writing.clock()  # it has begun
        connection = Connection(self._database.plain, self._pooled)
        connection.begin()
        return Session(connection, expire_on_commit=False, join_transaction_mode="rollback_only")

    def run(self, statement: Prepared, **values: object) -> list[Any]:
        """Run a statement; return the rows it gives, as objects with its columns."""
        return self.run_all(statement.given(**values))[0]

    def run_all(self, *steps: Step) -> list[list[Any]]:
        """Run statements one after the other, in one round trip; return the rows of each."""
        return self._writing.run(steps)

    def finish(self, *steps: Step) -> list[list[Any]]:
        """Do as :meth:`run_all` and commit in the same round trip: nothing can be done in the transaction any more."""
        self._close_session()
        self._is_over = True
        return self._writing.run(steps, is_last=True)

    def commit(self) -> None:
        """End the transaction, if that was not done."""
        self._close_session()
        if not self._is_over:
            self._writing.commit()

    def _close_session(self) -> None:
        """Write what the session has to write."""
        if "session" in self.__dict__:
            self.session.commit()
            self.session.close()

    def abandon(self) -> None:
        """Leave without a commit: the connection is rolled back when it goes back to its pool."""
        if "session" in self.__dict__:
            self.session.close()


class Transactions:
    """Run functions in one transaction each. Usable by several threads and after a fork.

    :param clock: another clock than the database's, for tests.
    """

    def __init__(
        self, database: Database, *, deadline_seconds: float = DEADLINE_SECONDS, clock: Clock | None = None
    ) -> None:
        self.database = database
        self._deadline_seconds = deadline_seconds
        self._clock = clock
        self._pid = os.getpid()
        self._retries = Retrying(
            retry=retry_if_exception(lambda error: self._pause_seconds(error) is not None),
            wait=self._wait,
            stop=stop_after_delay(deadline_seconds),
            reraise=True,
        )

    def read(self, work: Callable[[Session, Clock], T]) -> T:
        """Run ``work`` on one consistent state."""

        def once() -> T:
            with self.database.reading.connect() as connection, Session(connection, expire_on_commit=False) as session:
                return work(session, self._clock or self.database.clock(connection))

        return self.retrying(once)

    def write(self, work: Callable[[Session, Clock], T]) -> T:
        """Run ``work`` as a whole or not at all; it may be run again, so it must change nothing but the session."""
        return self.change(lambda transaction: work(transaction.session, transaction.clock))

    def change(self, work: Callable[[Transaction], T], *, is_passing: bool = False) -> T:
        """Do as :meth:`write`, for work that knows its statements beforehand.

        :param is_passing: what is written says nothing any more when the database's host has lost its power.
        """

        def once() -> T:
            with self._driver_errors() as connection:
                transaction = Transaction(self.database, connection, self._clock, is_passing=is_passing)
                try:
                    result = work(transaction)
                    transaction.commit()
                except BaseException:
                    transaction.abandon()
                    raise
                return result

        with self.database.turn(self._deadline_seconds):
            return self.retrying(once)

    @contextlib.contextmanager
    def _driver_errors(self) -> Iterator[PoolProxiedConnection]:
        """Lend a connection; raise a driver's errors as SQLAlchemy does, and do not use a lost connection again."""
        engine = self.database.plain
        dialect, driver_error = engine.dialect, engine.dialect.loaded_dbapi.Error
        connection: PoolProxiedConnection | None = None
        try:
            connection = engine.raw_connection()
            yield connection
        except driver_error as error:
            is_lost = connection is not None and dialect.is_disconnect(error, connection, None)
            if connection is not None and is_lost:
                connection.invalidate(error)
            raise DBAPIError.instance(
                None, None, error, driver_error, connection_invalidated=is_lost, dialect=dialect
            ) from error
        finally:
            if connection is not None:
                connection.close()

    def retrying(self, once: Callable[[], T]) -> T:
        """Call ``once`` until the database is not busy.

        :raises LedgerUnavailableError: if it does not answer within the deadline, or cannot read or write its files.
        :raises LedgerError: if the database refuses for a reason that waiting will not cure.
        """
        self._forget_connections_after_fork()
        try:
            with self.database.deadline(self._deadline_seconds):
                return self._retries(once)
        except DBAPIError as error:
            raise self._translated(error) from error

    def _pause_seconds(self, error: BaseException | None) -> float | None:
        return self.database.pause_seconds(error) if isinstance(error, DBAPIError) else None

    def _wait(self, state: RetryCallState) -> float:
        assert state.outcome is not None
        return self._pause_seconds(state.outcome.exception()) or 0.0

    def _translated(self, error: DBAPIError) -> LedgerError:
        is_locked = self.database.is_locked(error)
        if not is_locked and not isinstance(error, OperationalError) and not error.connection_invalidated:
            return LedgerError(f"the ledger {self.database.shown} refuses a statement", str(error.orig))
        locked = f"other processes kept it locked for {self._deadline_seconds:g} s"
        return LedgerUnavailableError(
            f"the ledger {self.database.shown} does not answer",
            locked if is_locked else str(error.orig).strip(),
            self.database.todo,
        )

    def close(self) -> None:
        """Close all connections."""
        self.database.plain.dispose()

    def _forget_connections_after_fork(self) -> None:
        """Leave the parent's connections alone: a connection must not cross a fork, not even to be closed."""
        if self._pid != os.getpid():
            self.database.plain.dispose(close=False)
            self._pid = os.getpid()


def _begin(connection: Connection) -> None:
    for statement in connection.get_execution_options().get("begin", ()):
        connection.exec_driver_sql(statement)
