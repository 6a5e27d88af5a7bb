"""Transactions that end within a deadline, whatever the database and other processes do."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from sqlalchemy import Connection, CursorResult, Engine, Executable, Row, event
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay

from airflow_tf.core.errors import LedgerError, LedgerUnavailableError
from airflow_tf.ledger.clock import Clock

DEADLINE_SECONDS = 10.0
T = TypeVar("T")


class Database(ABC):
    """One kind of database, as :class:`Transactions` needs it.

    :param shown: where the ledger is, without secrets.
    :param engine: its transactions begin with the statements in the execution option ``begin``.
    :param begin_reading: begin a transaction that sees one consistent state.
    :param begin_writing: begin a transaction beside which no other one writes, and which survives a power cut.
    :param begin_passing: begin one like that which a power cut may undo, as long as no later one was to survive it.
    """

    is_of_one_host: ClassVar[bool]
    """Whether all its users are on the database's own host, and end with it."""

    todo: ClassVar[str]
    """What an operator does when the database does not answer."""

    def __init__(
        self,
        shown: str,
        engine: Engine,
        *,
        begin_reading: Sequence[str],
        begin_writing: Sequence[str],
        begin_passing: Sequence[str],
    ) -> None:
        self.shown = shown
        event.listen(engine, "begin", _begin)
        self.plain = engine
        self.reading = engine.execution_options(begin=begin_reading)
        self.writing = engine.execution_options(begin=begin_writing)
        self.passing = engine.execution_options(begin=begin_passing)

    @abstractmethod
    def clock(self, connection: Connection) -> Clock:
        """Return the ledger's clock within a transaction."""

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
    """One transaction: prepared statements on its connection, and an ORM session on the same one for what is rare.

    A session costs a claim of devices more than the database does. What every claim does is done by
    :mod:`airflow_tf.ledger.statements`; what a session has loaded must not be changed by them afterwards.
    """

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self.connection = connection
        self.clock = clock

    @cached_property
    def session(self) -> Session:
        """A session that begins and ends nothing of its own."""
        return Session(self.connection, expire_on_commit=False, join_transaction_mode="rollback_only")

    def rows(self, statement: Executable, **values: object) -> Sequence[Row[Any]]:
        """Return what a statement finds."""
        return self.connection.execute(statement, values).all()

    def change(self, statement: Executable, *values: Mapping[str, object]) -> int:
        """Run a statement once for each of ``values``; return how many rows it touched."""
        if not values:
            return 0
        given = values[0] if len(values) == 1 else list(values)
        result: CursorResult[Any] = self.connection.execute(statement, given)
        return result.rowcount

    def add(self, statement: Executable, rows: Sequence[Mapping[str, object]]) -> Sequence[Row[Any]]:
        """Insert many rows with as few statements as the database allows; return what is returned of each."""
        return self.connection.execute(statement, rows).all()

    def finish(self) -> None:
        """Write what the session has to write."""
        if "session" in self.__dict__:
            self.session.commit()
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

    def read(self, work: Callable[[Session, Clock], T]) -> T:
        """Run ``work`` on one consistent state."""
        return self._run(self.database.reading, lambda transaction: work(transaction.session, transaction.clock))

    def write(self, work: Callable[[Session, Clock], T]) -> T:
        """Run ``work`` as a whole or not at all; it may be run again, so it must change nothing but the session."""
        return self.change(lambda transaction: work(transaction.session, transaction.clock))

    def change(self, work: Callable[[Transaction], T], *, is_passing: bool = False) -> T:
        """Do as :meth:`write`, for work that knows its statements beforehand.

        :param is_passing: what is written says nothing any more when the database's host has lost its power.
        """
        with self.database.turn(self._deadline_seconds):
            return self._run(self.database.passing if is_passing else self.database.writing, work)

    def _run(self, engine: Engine, work: Callable[[Transaction], T]) -> T:
        def once() -> T:
            with engine.begin() as connection:
                transaction = Transaction(connection, self._clock or self.database.clock(connection))
                result = work(transaction)
                transaction.finish()
                return result

        return self.retrying(once)

    def retrying(self, once: Callable[[], T]) -> T:
        """Call ``once`` until the database is not busy.

        :raises LedgerUnavailableError: if it does not answer within the deadline, or cannot read or write its files.
        :raises LedgerError: if the database refuses for a reason that waiting will not cure.
        """
        self._forget_connections_after_fork()
        retries = Retrying(
            retry=retry_if_exception(lambda error: self._pause_seconds(error) is not None),
            wait=self._wait,
            stop=stop_after_delay(self._deadline_seconds),
            reraise=True,
        )
        try:
            with self.database.deadline(self._deadline_seconds):
                return retries(once)
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
