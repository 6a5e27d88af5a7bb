"""Bring a ledger's schema up to date; safe when several first tasks do it at once."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from airflow_tf.core.errors import LedgerError
from airflow_tf.ledger.engine import Transactions

HEAD = "0004"
"""Newest revision; a test holds it equal to the migrations'."""

VERSION_TABLE = "airflow_tf_version"
MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(transactions: Transactions) -> None:
    """Upgrade the schema to :data:`HEAD` in one writing transaction.

    :raises LedgerError: if the ledger was made by a newer airflow_tf.
    :raises LedgerUnavailableError: if another process migrates for too long.
    """
    if transactions.read(lambda session, _: current_revision(session.connection())) == HEAD:
        return
    with transactions.database.migration_lock():
        transactions.retrying(transactions.database.prepare)
        transactions.write(lambda session, _: _upgrade(session.connection(), transactions.database.shown))


def current_revision(connection: Connection) -> str | None:
    """Return the revision of the schema; None for a new database."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}"))  # noqa: S608 (a constant)
    return found.scalar_one_or_none()


def _upgrade(connection: Connection, shown: str) -> None:
    """Run what is missing; nothing if another process has done it since."""
    # Imported here: alembic costs every task a tenth of a second, and only the first one needs it.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    found = current_revision(connection)
    if found is not None and found not in known:
        raise LedgerError(
            f"the ledger {shown} has schema {found}, which this airflow_tf does not know",
            "a newer airflow_tf has made it",
            "Install that version here too, or set [airflow_tf] ledger_url to another database.",
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
