"""A ledger in one file of this host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from airflow_tf.core.errors import LedgerError, LedgerUnavailableError
from airflow_tf.ledger.clock import Clock, boot_clock
from airflow_tf.ledger.engine import Database, Writing
from airflow_tf.ledger.prepared import SQLITE, Step
from airflow_tf.ledger.turnstile import Turnstile

_LONGEST_PAUSE_SECONDS = 0.03
_PRIMARY_CODE_MASK = 0xFF
_MIGRATION_DEADLINE_SECONDS = 60.0
_MIGRATION_PAUSE_SECONDS = 0.02


class SqliteDatabase(Database):
    """SQLite with a write-ahead log.

    A writer takes SQLite's lock at its begin (BEGIN IMMEDIATE), so it never fails halfway. Before that it waits for its
    turn in a :class:`Turnstile`; who has not got it in time asks for the lock itself, as all did without it.
    """

    is_of_one_host: ClassVar[bool] = True
    todo: ClassVar[str] = "Look for a process that holds it ('fuser' on the file), for a full disk and for permissions."

    def __init__(self, url: URL, path: Path) -> None:
        engine = create_engine(url, connect_args={"timeout": 0})
        event.listen(engine, "connect", _prepare_connection)
        super().__init__(str(path), engine, begin_reading=["BEGIN"])
        self.path = path
        self._turnstile = Turnstile(path.with_name(f"{path.name}.turn"))
        self._clock = boot_clock()

    def clock(self, _connection: Connection) -> Clock:
        """Return the host's boot clock: every user of the file is on this host."""
        return self._clock

    def begin(self, driver: sqlite3.Connection, clock: Clock | None, *, is_passing: bool) -> Writing:
        """Take SQLite's lock; a transaction that is not passing syncs what passing ones have left, too."""
        driver.execute(f"PRAGMA synchronous = {'NORMAL' if is_passing else 'FULL'}")
        driver.execute("BEGIN IMMEDIATE")
        return _Writing(driver, (clock or self._clock).stopped())  # read after the wait for the lock

    def is_locked(self, error: DBAPIError) -> bool:
        """Tell whether SQLite says BUSY or LOCKED."""
        origin: Any = error.orig
        code = getattr(origin, "sqlite_errorcode", 0) & _PRIMARY_CODE_MASK
        return code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

    def pause_seconds(self, error: DBAPIError) -> float | None:
        """Wait for other processes only."""
        return random.uniform(0, _LONGEST_PAUSE_SECONDS) if self.is_locked(error) else None  # noqa: S311 (no secret)

    def turn(self, seconds: float) -> AbstractContextManager[object]:
        """Queue with the other writers of the file."""
        return self._turnstile.turn(seconds)

    @contextlib.contextmanager
    def migration_lock(self) -> Iterator[None]:
        """Hold a lock file beside the database: the change to WAL is not part of a transaction.

        :raises LedgerUnavailableError: if another process migrates for longer than a minute.
        """
        path = self.path.with_name(f"{self.path.name}.migrate.lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + _MIGRATION_DEADLINE_SECONDS
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise LedgerUnavailableError(
                        f"the ledger's schema is being migrated for more than {_MIGRATION_DEADLINE_SECONDS:.0f} s",
                        f"another process holds {path}",
                        "Find it with 'fuser' on that file.",
                    )
                time.sleep(_MIGRATION_PAUSE_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def prepare(self) -> None:
        """Let readers and a writer go on beside each other; kept in the file. Not possible inside a transaction."""
        with self.plain.connect() as connection:
            mode = connection.execute(text("PRAGMA journal_mode = WAL")).scalar_one()
        if mode != "wal":
            raise LedgerError(
                f"the ledger {self.path} cannot use write-ahead logging (journal mode {mode})",
                "its file system has no shared memory for SQLite",
                "Set [airflow_tf] home to a folder on a local disk.",
            )


class _Writing(Writing):
    """A transaction that has begun."""

    def __init__(self, driver: sqlite3.Connection, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    def clock(self) -> Clock:
        return self._clock

    def run(self, steps: Sequence[Step], *, is_last: bool = False) -> list[list[Any]]:
        values = self._clock.values()
        found = [step.statement.rows_of(self._driver.execute(*step.put(SQLITE, values))) for step in steps]
        if is_last:
            self.commit()
        return found

    def commit(self) -> None:
        self._driver.commit()


def _prepare_connection(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # no BEGIN of the driver's own
    connection.execute("PRAGMA foreign_keys = ON")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
