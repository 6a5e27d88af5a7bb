"""Tables of the ledger. The migrations make them; a test holds both equal.

Times ending in ``_at`` are wall time as text, for display; times ending in ``_seconds`` are the ledger's clock,
``confirmed_seconds`` the boot clock of the member's host.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Float, ForeignKey, ForeignKeyConstraint, Index, String, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from airflow_tf.core.states import MemberState

LIVE = tuple(state.value for state in MemberState if state.holds_device)
_IS_LIVE = text("state IN ('reserved', 'confirmed')")


class Base(DeclarativeBase):
    """Root of the tables."""


class MetaEntry(Base):
    """One fact about the ledger itself: ``ledger_id``."""

    __tablename__ = "meta"

    key: Mapped[str] = mapped_column(String(40), primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class HostEntry(Base):
    """A place where replicas run; ``machine`` stays the same over boots."""

    __tablename__ = "hosts"

    host_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    machine: Mapped[str] = mapped_column(String(40), index=True)
    name: Mapped[str] = mapped_column(Text)
    boot_id: Mapped[str] = mapped_column(String(40))
    seen_at: Mapped[str] = mapped_column(String(40))


class GangEntry(Base):
    """One gang; ``count`` and ``folder`` are known once a task opened it, not while a sensor reserves for it."""

    __tablename__ = "gangs"

    key: Mapped[str] = mapped_column(String(40), primary_key=True)
    installation: Mapped[str] = mapped_column(String(40))
    dag_id: Mapped[str] = mapped_column(Text, index=True)
    run_id: Mapped[str] = mapped_column(Text)
    task_id: Mapped[str] = mapped_column(Text)
    group_index: Mapped[int]
    count: Mapped[int | None]
    folder: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[str] = mapped_column(String(40))
    supervisor_pid: Mapped[int | None]
    renewed_at: Mapped[str | None] = mapped_column(String(40))
    cancelled_by: Mapped[str | None] = mapped_column(Text)
    cancelled_at: Mapped[str | None] = mapped_column(String(40))

    @property
    def label(self) -> str:
        """A line for people, as :attr:`airflow_tf.core.identity.GangKey.label`."""
        return f"{self.dag_id} / {self.run_id} / {self.task_id}"


class ReservationEntry(Base):
    """One all-or-nothing grant. Its id is the fence, given out once: by AUTOINCREMENT (SQLite), by a sequence."""

    __tablename__ = "reservations"
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 (read by SQLAlchemy as it is)

    id: Mapped[int] = mapped_column(primary_key=True)
    gang_key: Mapped[str] = mapped_column(ForeignKey("gangs.key"))
    host_id: Mapped[str] = mapped_column(ForeignKey("hosts.host_id"))
    created_at: Mapped[str] = mapped_column(String(40))


class MemberEntry(Base):
    """A replica's part of a reservation. At most one member of a replica is live."""

    __tablename__ = "members"
    __table_args__ = (
        Index("one_live_member", "gang_key", "replica", unique=True, sqlite_where=_IS_LIVE, postgresql_where=_IS_LIVE),
        Index("members_by_state", "state"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    reservation_id: Mapped[int] = mapped_column(ForeignKey("reservations.id"))
    gang_key: Mapped[str] = mapped_column(ForeignKey("gangs.key"))
    host_id: Mapped[str] = mapped_column(ForeignKey("hosts.host_id"))
    replica: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    epoch: Mapped[str] = mapped_column(String(40))
    expires_seconds: Mapped[float] = mapped_column(Float)
    confirmed_seconds: Mapped[float | None] = mapped_column(Float)
    supervisor_pid: Mapped[int | None]
    created_at: Mapped[str] = mapped_column(String(40))
    changed_at: Mapped[str] = mapped_column(String(40))


class DeviceEntry(Base):
    """One device of one host. ``member_id`` is its only holder: two holders cannot be written down."""

    __tablename__ = "devices"

    host_id: Mapped[str] = mapped_column(ForeignKey("hosts.host_id"), primary_key=True)
    uuid: Mapped[str] = mapped_column(String(200), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(Text)
    index: Mapped[int] = mapped_column("device_index")
    visible: Mapped[str] = mapped_column(Text)
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    health: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text)
    is_present: Mapped[bool]
    seen_at: Mapped[str] = mapped_column(String(40))
    member_id: Mapped[int | None] = mapped_column(ForeignKey("members.id"), index=True)


class GenerationEntry(Base):
    """One life of a replica: the first, and one more each time a user clears its task."""

    __tablename__ = "generations"

    gang_key: Mapped[str] = mapped_column(ForeignKey("gangs.key"), primary_key=True)
    replica: Mapped[int] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(primary_key=True)
    first_try: Mapped[int]
    opened_at: Mapped[str] = mapped_column(String(40))


class ViewEntry(Base):
    """The newest view of a replica."""

    __tablename__ = "views"

    gang_key: Mapped[str] = mapped_column(ForeignKey("gangs.key"), primary_key=True)
    replica: Mapped[int] = mapped_column(primary_key=True)
    ti_id: Mapped[str] = mapped_column(String(40))
    try_number: Mapped[int]
    first_try: Mapped[int]
    epoch: Mapped[str] = mapped_column(String(40))
    entered_seconds: Mapped[float] = mapped_column(Float)
    seen_at: Mapped[str] = mapped_column(String(40))


class AttemptEntry(Base):
    """One start of a replica's program; ``token`` marks its processes and is used once."""

    __tablename__ = "attempts"
    __table_args__ = (
        ForeignKeyConstraint(
            ["gang_key", "replica", "generation"],
            ["generations.gang_key", "generations.replica", "generations.generation"],
        ),
    )

    gang_key: Mapped[str] = mapped_column(String(40), primary_key=True)
    replica: Mapped[int] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    member_id: Mapped[int] = mapped_column(ForeignKey("members.id"), index=True)
    token: Mapped[str] = mapped_column(String(64), unique=True)
    state: Mapped[str] = mapped_column(String(16))
    pid: Mapped[int | None]
    step: Mapped[int | None] = mapped_column(BigInteger)
    started_at: Mapped[str] = mapped_column(String(40))
    updated_at: Mapped[str] = mapped_column(String(40))
    ended_at: Mapped[str | None] = mapped_column(String(40))
    cause: Mapped[str] = mapped_column(String(24))
    message: Mapped[str] = mapped_column(Text)
    exit_code: Mapped[int | None]
    checkpoint: Mapped[str | None] = mapped_column(Text)
    metrics: Mapped[dict[str, Any]] = mapped_column(JSON)
