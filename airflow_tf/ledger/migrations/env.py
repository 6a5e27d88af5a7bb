"""What alembic runs: the migrations on the connection, and inside the transaction, that it was given."""

from __future__ import annotations

from alembic import context

from airflow_tf.ledger.migrate import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
context.run_migrations()
