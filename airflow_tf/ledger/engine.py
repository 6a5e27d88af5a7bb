"""Transactions on SQLite that end within a deadline, whatever other processes do."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.orm import Session
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

from airflow_tf.core.errors import LedgerError, LedgerUnavailableError

DEADLINE_SECONDS = 10.0
_LONGEST_WAIT_SECONDS = 0.03
_PRIMARY_CODE_MASK = 0xFF
T = TypeVar("T")


class Transactions:
    """Run functions in one transaction each.

    A writer takes SQLite's lock at its begin (BEGIN IMMEDIATE), so it never fails halfway. SQLite's own waiting lets
    its interval grow, which starves those who wait longest; ours draws it anew from one short range each time.
    Usable by several threads and after a fork.
    """

    def __init__(self, url: URL, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._shown = url.render_as_string(hide_password=True)
        self._deadline_seconds = deadline_seconds
        self._pid = os.getpid()
        self.engine = create_engine(url, connect_args={"timeout": 0})
        event.listen(self.engine, "connect", _prepare_connection)
        event.listen(self.engine, "begin", _begin)
        self.writing = self.engine.execution_options(begin="BEGIN IMMEDIATE")

    def read(self, work: Callable[[Session], T]) -> T:
        """Run ``work`` on one consistent state."""
        return self._in_session(self.engine, work)

    def write(self, work: Callable[[Session], T]) -> T:
        """Run ``work`` as a whole or not at all; it may be run again, so it must change nothing but the session."""
        return self._in_session(self.writing, work)

    def _in_session(self, engine: Engine, work: Callable[[Session], T]) -> T:
        def once() -> T:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                return work(session)

        return self.retrying(once)

    def retrying(self, once: Callable[[], T]) -> T:
        """Call ``once`` until the database is not busy.

        :raises LedgerUnavailableError: if it does not answer within the deadline, or cannot read or write its file.
        :raises LedgerError: if the database refuses for a reason that waiting will not cure.
        """
        self._forget_connections_after_fork()
        retries = Retrying(
            retry=retry_if_exception(_is_contention),
            wait=wait_random(0, _LONGEST_WAIT_SECONDS),
            stop=stop_after_delay(self._deadline_seconds),
            reraise=True,
        )
        try:
            return retries(once)
        except OperationalError as error:
            locked = f"other processes kept it locked for {self._deadline_seconds:g} s" if _is_contention(error) else ""
            raise LedgerUnavailableError(
                f"the ledger {self._shown} does not answer",
                locked or str(error.orig),
                "Look for a process that holds it ('fuser' on the file), for a full disk and for permissions.",
            ) from error
        except DatabaseError as error:
            raise LedgerError(f"the ledger {self._shown} refuses a statement", str(error.orig)) from error

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _forget_connections_after_fork(self) -> None:
        """Leave the parent's connections alone: a SQLite connection must not cross a fork, not even to be closed."""
        if self._pid != os.getpid():
            self.engine.dispose(close=False)
            self._pid = os.getpid()


def _prepare_connection(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # no BEGIN of the driver's own
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")  # an outcome that was recorded survives a power cut


def _begin(connection: Connection) -> None:
    if statement := connection.get_execution_options().get("begin", "BEGIN"):
        connection.exec_driver_sql(statement)


def _is_contention(error: BaseException) -> bool:
    origin: Any = getattr(error, "orig", None)
    code = getattr(origin, "sqlite_errorcode", 0) & _PRIMARY_CODE_MASK
    return code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
