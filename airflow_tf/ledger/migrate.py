"""Bring a ledger's schema up to date; safe when several first tasks do it at once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import inspect, text

from airflow_tf.core.errors import LedgerError, LedgerUnavailableError
from airflow_tf.ledger.engine import Transactions

HEAD = "0001"
"""Newest revision; a test holds it equal to the migrations'."""

VERSION_TABLE = "airflow_tf_version"
MIGRATIONS = Path(__file__).parent / "migrations"
_LOCK_DEADLINE_SECONDS = 60.0
_LOCK_PAUSE_SECONDS = 0.02


def migrate(transactions: Transactions, database: Path) -> None:
    """Upgrade the schema to :data:`HEAD` in one transaction.

    :raises LedgerError: if the ledger was made by a newer airflow_tf.
    :raises LedgerUnavailableError: if another process migrates for longer than a minute.
    """
    if current_revision(transactions) == HEAD:
        return
    with _migration_lock(database.with_name(f"{database.name}.migrate.lock")):
        found = current_revision(transactions)
        if found == HEAD:
            return
        transactions.retrying(lambda: _switch_to_wal(transactions, database))
        _upgrade(transactions, database, found)


def current_revision(transactions: Transactions) -> str | None:
    """Return the revision of the schema; None for a new database."""

    def query() -> str | None:
        with transactions.engine.connect() as connection:
            if not inspect(connection).has_table(VERSION_TABLE):
                return None
            found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}"))  # noqa: S608 (a constant)
            return found.scalar_one_or_none()

    return transactions.retrying(query)


def _switch_to_wal(transactions: Transactions, database: Path) -> None:
    """Let readers and a writer go on beside each other; kept in the file. Not possible inside a transaction."""
    with transactions.engine.execution_options(begin=None).connect() as connection:
        mode = connection.execute(text("PRAGMA journal_mode = WAL")).scalar_one()
    if mode != "wal":
        raise LedgerError(
            f"the ledger {database} cannot use write-ahead logging (journal mode {mode})",
            "its file system has no shared memory for SQLite",
            "Set [airflow_tf] home to a folder on a local disk.",
        )


def _upgrade(transactions: Transactions, database: Path, found: str | None) -> None:
    # Imported here: alembic costs every task a tenth of a second, and only the first one needs it.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise LedgerError(
            f"the ledger {database} has schema {found}, which this airflow_tf does not know",
            "a newer airflow_tf has made it",
            "Install that version here too, or set [airflow_tf] ledger_url to another file.",
        )

    def once() -> None:
        with transactions.writing.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    transactions.retrying(once)


@contextlib.contextmanager
def _migration_lock(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_DEADLINE_SECONDS
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise LedgerUnavailableError(
                    f"the ledger's schema is being migrated for more than {_LOCK_DEADLINE_SECONDS:.0f} s",
                    f"another process holds {path}",
                    "Find it with 'fuser' on that file.",
                )
            time.sleep(_LOCK_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
