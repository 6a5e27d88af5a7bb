"""Tables of the ledger. The migrations make them; a test holds both equal.

Times ending in ``_at`` are wall time as text, for display; times ending in ``_seconds`` are the ledger's clock within
the ``epoch`` beside them, ``confirmed_seconds`` the boot clock of the member's host.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    String,
    Text,
    false,
    text,
    true,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from airflow_tf.core.states import AttemptState, MemberState

LIVE = tuple(state.value for state in MemberState if state.holds_device)
RUNNING = tuple(state.value for state in AttemptState if not state.is_terminal)
_IS_LIVE = text("state IN ('reserved', 'confirmed')")
_IS_WHOLE = text("share_percent = 100")


class Base(DeclarativeBase):
    """Root of the tables."""


class MetaEntry(Base):
    """One fact about the ledger itself: ``ledger_id``."""

    __tablename__ = "meta"

    key: Mapped[str] = mapped_column(String(40), primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class HostEntry(Base):
    """A place where replicas run; ``machine`` stays the same over boots, ``drained_why`` until it is taken back."""

    __tablename__ = "hosts"

    host_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    machine: Mapped[str] = mapped_column(String(40), index=True)
    name: Mapped[str] = mapped_column(Text)
    boot_id: Mapped[str] = mapped_column(String(40))
    seen_at: Mapped[str] = mapped_column(String(40))
    drained_why: Mapped[str | None] = mapped_column(Text)


class LookEntry(Base):
    """The last look at a host's devices of one kind; ``digest`` is over all that was recorded of them."""

    __tablename__ = "looks"

    host_id: Mapped[str] = mapped_column(ForeignKey("hosts.host_id"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    digest: Mapped[str] = mapped_column(String(40))
    seen_at: Mapped[str] = mapped_column(String(40))


class GangEntry(Base):
    """One gang; ``count`` and ``folder`` are known once a task opened it, not while a sensor reserves for it."""

    __tablename__ = "gangs"

    key: Mapped[str] = mapped_column(String(40), primary_key=True)
    installation: Mapped[str] = mapped_column(String(40))
    dag_id: Mapped[str] = mapped_column(Text, index=True)
    run_id: Mapped[str] = mapped_column(Text)
    task_id: Mapped[str] = mapped_column(Text)
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
    """One all-or-nothing grant. Its id is the fence, given out once: by AUTOINCREMENT (SQLite), by a sequence.

    ``arrived_seconds`` is when its gang first asked; where ``is_void`` its devices could not be used, and the gang has
    that place in the queue again.
    """

    __tablename__ = "reservations"
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 (read by SQLAlchemy as it is)

    id: Mapped[int] = mapped_column(primary_key=True)
    gang_key: Mapped[str] = mapped_column(ForeignKey("gangs.key"), index=True)
    host_id: Mapped[str] = mapped_column(ForeignKey("hosts.host_id"))
    created_at: Mapped[str] = mapped_column(String(40))
    epoch: Mapped[str] = mapped_column(String(40), server_default="")
    arrived_seconds: Mapped[float] = mapped_column(Float, server_default="0")
    is_void: Mapped[bool] = mapped_column(server_default=false())


class MemberEntry(Base):
    """A replica's part of a reservation. At most one member of a replica is live.

    ``held_seconds`` is when it was confirmed and ``renewed_seconds`` when its supervisor last gave a sign.
    """

    __tablename__ = "members"
    __table_args__ = (
        Index("one_live_member", "gang_key", "replica", unique=True, sqlite_where=_IS_LIVE, postgresql_where=_IS_LIVE),
        Index("members_by_state", "state", "expires_seconds"),
        Index("members_by_reservation", "reservation_id", "replica", unique=True),
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
    share_percent: Mapped[int] = mapped_column(server_default="100")
    time_limit_seconds: Mapped[float | None] = mapped_column(Float)
    held_seconds: Mapped[float | None] = mapped_column(Float)
    renewed_seconds: Mapped[float | None] = mapped_column(Float)
    ended_why: Mapped[str] = mapped_column(Text, server_default="")


class HoldingEntry(Base):
    """A live member's part of one device. Two holders of the whole device cannot be written down."""

    __tablename__ = "holdings"
    __table_args__ = (
        ForeignKeyConstraint(["host_id", "uuid"], ["devices.host_id", "devices.uuid"]),
        Index("holdings_by_device", "host_id", "uuid"),
        Index("one_whole_holder", "host_id", "uuid", unique=True, sqlite_where=_IS_WHOLE, postgresql_where=_IS_WHOLE),
    )

    member_id: Mapped[int] = mapped_column(ForeignKey("members.id"), primary_key=True)
    host_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    uuid: Mapped[str] = mapped_column(String(200), primary_key=True)
    share_percent: Mapped[int]


class WaiterEntry(Base):
    """A gang's replicas that wait for devices of a host; who looked last too long ago is forgotten."""

    __tablename__ = "queue"

    id: Mapped[int] = mapped_column(primary_key=True)
    gang_key: Mapped[str] = mapped_column(ForeignKey("gangs.key"), index=True)
    host_id: Mapped[str] = mapped_column(ForeignKey("hosts.host_id"), index=True)
    request: Mapped[dict[str, Any]] = mapped_column(JSON)
    replicas: Mapped[list[int]] = mapped_column(JSON)
    priority: Mapped[int]
    time_limit_seconds: Mapped[float | None] = mapped_column(Float)
    look_seconds: Mapped[float] = mapped_column(Float)
    epoch: Mapped[str] = mapped_column(String(40))
    arrived_seconds: Mapped[float] = mapped_column(Float)
    looked_seconds: Mapped[float] = mapped_column(Float)
    refused: Mapped[str] = mapped_column(Text)


class DeviceEntry(Base):
    """One device of one host, as last read in the boot ``boot_id``; not offered to anybody while it is barred."""

    __tablename__ = "devices"
    __table_args__ = (Index("devices_by_bar", "barred_until_seconds"),)

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
    boot_id: Mapped[str] = mapped_column(String(40), server_default="")
    barred_epoch: Mapped[str | None] = mapped_column(String(40))
    barred_until_seconds: Mapped[float | None] = mapped_column(Float)
    barred_why: Mapped[str | None] = mapped_column(Text)


class GenerationEntry(Base):
    """One life of a replica: the first, and one more each time a user clears its task, or a sibling's in a gang.

    ``spec`` is what its first view began it with; ``is_entered`` is False while only siblings have entered theirs.
    """

    __tablename__ = "generations"

    gang_key: Mapped[str] = mapped_column(ForeignKey("gangs.key"), primary_key=True)
    replica: Mapped[int] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(primary_key=True)
    first_try: Mapped[int]
    opened_at: Mapped[str] = mapped_column(String(40))
    spec: Mapped[str] = mapped_column(Text, server_default="")
    is_entered: Mapped[bool] = mapped_column(server_default=true())


class ViewEntry(Base):
    """The newest view of a replica: when it entered, last gave a sign, and since when attempts are watched."""

    __tablename__ = "views"

    gang_key: Mapped[str] = mapped_column(ForeignKey("gangs.key"), primary_key=True)
    replica: Mapped[int] = mapped_column(primary_key=True)
    ti_id: Mapped[str] = mapped_column(String(40))
    try_number: Mapped[int]
    first_try: Mapped[int]
    epoch: Mapped[str] = mapped_column(String(40))
    entered_seconds: Mapped[float] = mapped_column(Float)
    seen_at: Mapped[str] = mapped_column(String(40))
    signed_epoch: Mapped[str] = mapped_column(String(40), server_default="")
    signed_seconds: Mapped[float] = mapped_column(Float, server_default="0")
    watched_epoch: Mapped[str] = mapped_column(String(40), server_default="")
    watched_seconds: Mapped[float] = mapped_column(Float, server_default="0")
    stop_reason: Mapped[str | None] = mapped_column(Text)
    log_attempt: Mapped[int] = mapped_column(server_default="0")
    log_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0")


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
