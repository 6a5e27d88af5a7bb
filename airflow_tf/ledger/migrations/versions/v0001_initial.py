"""Make the ledger's tables and give the ledger its id."""

from __future__ import annotations

from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_IS_LIVE = sa.text("state IN ('reserved', 'confirmed')")


def upgrade() -> None:
    """Create everything."""
    meta = op.create_table(
        "meta",
        sa.Column("key", sa.String(40), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.bulk_insert(meta, [{"key": "ledger_id", "value": uuid4().hex[:16]}])
    _create_hosts_and_gangs()
    _create_reservations()
    _create_devices()
    _create_generations()
    _create_attempts()


def _create_hosts_and_gangs() -> None:
    op.create_table(
        "hosts",
        sa.Column("host_id", sa.String(40), primary_key=True),
        sa.Column("machine", sa.String(40), nullable=False, index=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("boot_id", sa.String(40), nullable=False),
        sa.Column("seen_at", sa.String(40), nullable=False),
    )
    op.create_table(
        "gangs",
        sa.Column("key", sa.String(40), primary_key=True),
        sa.Column("installation", sa.String(40), nullable=False),
        sa.Column("dag_id", sa.Text, nullable=False, index=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("task_id", sa.Text, nullable=False),
        sa.Column("group_index", sa.Integer, nullable=False),
        sa.Column("count", sa.Integer),
        sa.Column("folder", sa.Text),
        sa.Column("created_at", sa.String(40), nullable=False),
        sa.Column("supervisor_pid", sa.Integer),
        sa.Column("renewed_at", sa.String(40)),
        sa.Column("cancelled_by", sa.Text),
        sa.Column("cancelled_at", sa.String(40)),
    )


def _create_reservations() -> None:
    op.create_table(
        "reservations",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("gang_key", sa.String(40), sa.ForeignKey("gangs.key"), nullable=False),
        sa.Column("host_id", sa.String(40), sa.ForeignKey("hosts.host_id"), nullable=False),
        sa.Column("created_at", sa.String(40), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "members",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("reservation_id", sa.Integer, sa.ForeignKey("reservations.id"), nullable=False),
        sa.Column("gang_key", sa.String(40), sa.ForeignKey("gangs.key"), nullable=False),
        sa.Column("host_id", sa.String(40), sa.ForeignKey("hosts.host_id"), nullable=False),
        sa.Column("replica", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("epoch", sa.String(40), nullable=False),
        sa.Column("expires_seconds", sa.Float, nullable=False),
        sa.Column("confirmed_seconds", sa.Float),
        sa.Column("supervisor_pid", sa.Integer),
        sa.Column("created_at", sa.String(40), nullable=False),
        sa.Column("changed_at", sa.String(40), nullable=False),
    )
    op.create_index("members_by_state", "members", ["state"])
    op.create_index(
        "one_live_member",
        "members",
        ["gang_key", "replica"],
        unique=True,
        sqlite_where=_IS_LIVE,
        postgresql_where=_IS_LIVE,
    )


def _create_devices() -> None:
    op.create_table(
        "devices",
        sa.Column("host_id", sa.String(40), sa.ForeignKey("hosts.host_id"), primary_key=True),
        sa.Column("uuid", sa.String(200), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("device_index", sa.Integer, nullable=False),
        sa.Column("visible", sa.Text, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger),
        sa.Column("health", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("is_present", sa.Boolean, nullable=False),
        sa.Column("seen_at", sa.String(40), nullable=False),
        sa.Column("member_id", sa.Integer, sa.ForeignKey("members.id"), index=True),
    )


def _create_generations() -> None:
    op.create_table(
        "generations",
        sa.Column("gang_key", sa.String(40), sa.ForeignKey("gangs.key"), primary_key=True),
        sa.Column("replica", sa.Integer, primary_key=True),
        sa.Column("generation", sa.Integer, primary_key=True),
        sa.Column("first_try", sa.Integer, nullable=False),
        sa.Column("opened_at", sa.String(40), nullable=False),
    )
    op.create_table(
        "views",
        sa.Column("gang_key", sa.String(40), sa.ForeignKey("gangs.key"), primary_key=True),
        sa.Column("replica", sa.Integer, primary_key=True),
        sa.Column("ti_id", sa.String(40), nullable=False),
        sa.Column("try_number", sa.Integer, nullable=False),
        sa.Column("first_try", sa.Integer, nullable=False),
        sa.Column("epoch", sa.String(40), nullable=False),
        sa.Column("entered_seconds", sa.Float, nullable=False),
        sa.Column("seen_at", sa.String(40), nullable=False),
    )


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("gang_key", sa.String(40), primary_key=True),
        sa.Column("replica", sa.Integer, primary_key=True),
        sa.Column("generation", sa.Integer, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("member_id", sa.Integer, sa.ForeignKey("members.id"), nullable=False, index=True),
        sa.Column("token", sa.String(64), nullable=False, unique=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("pid", sa.Integer),
        sa.Column("step", sa.BigInteger),
        sa.Column("started_at", sa.String(40), nullable=False),
        sa.Column("updated_at", sa.String(40), nullable=False),
        sa.Column("ended_at", sa.String(40)),
        sa.Column("cause", sa.String(24), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("checkpoint", sa.Text),
        sa.Column("metrics", sa.JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["gang_key", "replica", "generation"],
            ["generations.gang_key", "generations.replica", "generations.generation"],
        ),
    )
