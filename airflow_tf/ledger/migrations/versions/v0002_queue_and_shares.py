"""Let shares of a device have holders, gangs wait in a queue, views give signs and gangs have generations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_IS_WHOLE = sa.text("share_percent = 100")


def upgrade() -> None:
    """Keep who holds what, and what was seen when, in tables of their own; add what did not exist."""
    connection = op.get_bind()
    held = connection.execute(
        sa.text("SELECT member_id, host_id, uuid, 100 AS share_percent FROM devices WHERE member_id IS NOT NULL")
    )
    holdings = [dict(row) for row in held.mappings()]
    seen = connection.execute(
        sa.text("SELECT host_id, kind, '' AS digest, max(seen_at) AS seen_at FROM devices GROUP BY host_id, kind")
    )
    looks = [dict(row) for row in seen.mappings()]
    _change_devices()
    op.bulk_insert(_create_holdings(), holdings)
    op.bulk_insert(_create_looks(), looks)
    _create_queue()
    _extend_reservations()
    _extend_views()


def _change_devices() -> None:
    op.drop_index("ix_devices_member_id", "devices")
    with op.batch_alter_table("devices") as devices:
        devices.drop_column("member_id")
        devices.drop_column("seen_at")
        devices.add_column(sa.Column("boot_id", sa.String(40), nullable=False, server_default=""))
        devices.add_column(sa.Column("barred_epoch", sa.String(40)))
        devices.add_column(sa.Column("barred_until_seconds", sa.Float))
        devices.add_column(sa.Column("barred_why", sa.Text))
    op.create_index("devices_by_bar", "devices", ["barred_until_seconds"])


def _create_holdings() -> sa.Table:
    table = op.create_table(
        "holdings",
        sa.Column("member_id", sa.Integer, sa.ForeignKey("members.id"), primary_key=True),
        sa.Column("host_id", sa.String(40), primary_key=True),
        sa.Column("uuid", sa.String(200), primary_key=True),
        sa.Column("share_percent", sa.Integer, nullable=False),
        sa.ForeignKeyConstraint(["host_id", "uuid"], ["devices.host_id", "devices.uuid"]),
    )
    op.create_index("holdings_by_device", "holdings", ["host_id", "uuid"])
    op.create_index(
        "one_whole_holder",
        "holdings",
        ["host_id", "uuid"],
        unique=True,
        sqlite_where=_IS_WHOLE,
        postgresql_where=_IS_WHOLE,
    )
    return table


def _create_looks() -> sa.Table:
    return op.create_table(
        "looks",
        sa.Column("host_id", sa.String(40), sa.ForeignKey("hosts.host_id"), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("digest", sa.String(40), nullable=False),
        sa.Column("seen_at", sa.String(40), nullable=False),
    )


def _create_queue() -> None:
    op.create_table(
        "queue",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("gang_key", sa.String(40), sa.ForeignKey("gangs.key"), nullable=False, index=True),
        sa.Column("host_id", sa.String(40), sa.ForeignKey("hosts.host_id"), nullable=False, index=True),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("replicas", sa.JSON, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("time_limit_seconds", sa.Float),
        sa.Column("look_seconds", sa.Float, nullable=False),
        sa.Column("epoch", sa.String(40), nullable=False),
        sa.Column("arrived_seconds", sa.Float, nullable=False),
        sa.Column("looked_seconds", sa.Float, nullable=False),
        sa.Column("refused", sa.Text, nullable=False),
    )


def _extend_reservations() -> None:
    for column in (
        sa.Column("epoch", sa.String(40), nullable=False, server_default=""),
        sa.Column("arrived_seconds", sa.Float, nullable=False, server_default="0"),
        sa.Column("is_void", sa.Boolean, nullable=False, server_default=sa.false()),
    ):
        op.add_column("reservations", column)
    op.create_index("ix_reservations_gang_key", "reservations", ["gang_key"])
    for column in (
        sa.Column("share_percent", sa.Integer, nullable=False, server_default="100"),
        sa.Column("time_limit_seconds", sa.Float),
        sa.Column("held_seconds", sa.Float),
        sa.Column("renewed_seconds", sa.Float),
        sa.Column("ended_why", sa.Text, nullable=False, server_default=""),
    ):
        op.add_column("members", column)
    op.drop_index("members_by_state", "members")
    op.create_index("members_by_state", "members", ["state", "expires_seconds"])
    op.create_index("members_by_reservation", "members", ["reservation_id", "replica"], unique=True)


def _extend_views() -> None:
    op.add_column("generations", sa.Column("spec", sa.Text, nullable=False, server_default=""))
    op.add_column("generations", sa.Column("is_entered", sa.Boolean, nullable=False, server_default=sa.true()))
    for column in (
        sa.Column("signed_epoch", sa.String(40), nullable=False, server_default=""),
        sa.Column("signed_seconds", sa.Float, nullable=False, server_default="0"),
        sa.Column("watched_epoch", sa.String(40), nullable=False, server_default=""),
        sa.Column("watched_seconds", sa.Float, nullable=False, server_default="0"),
        sa.Column("stop_reason", sa.Text),
        sa.Column("log_attempt", sa.Integer, nullable=False, server_default="0"),
        sa.Column("log_bytes", sa.BigInteger, nullable=False, server_default="0"),
    ):
        op.add_column("views", column)
    for clock in ("signed", "watched"):
        op.execute(f"UPDATE views SET {clock}_epoch = epoch, {clock}_seconds = entered_seconds")  # noqa: S608 (constants)
