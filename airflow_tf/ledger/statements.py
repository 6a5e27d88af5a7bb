"""What every claim of devices does in the database, built once: to build a statement costs more than to run it.

All that is asked for is bound by name. What is found only now and then (something expired, somebody waits, a device
has changed) is asked for by one row of truth values, and then dealt with by the ORM in the modules that use these.
"""

from __future__ import annotations

from typing import cast

from sqlalchemy import BindParameter, Table, bindparam, delete, exists, insert, or_, select, update

from airflow_tf.core.states import MemberState
from airflow_tf.ledger.schema import (
    LIVE,
    Base,
    DeviceEntry,
    GangEntry,
    HoldingEntry,
    HostEntry,
    LookEntry,
    MemberEntry,
    ReservationEntry,
    WaiterEntry,
)


def _table(entry: type[Base]) -> Table:
    return cast("Table", entry.__table__)


_DEVICES, _GANGS, _HOLDINGS, _HOSTS = map(_table, (DeviceEntry, GangEntry, HoldingEntry, HostEntry))
_LOOKS, _MEMBERS, _RESERVATIONS, _QUEUE = map(_table, (LookEntry, MemberEntry, ReservationEntry, WaiterEntry))
_RESERVED, _CONFIRMED = MemberState.RESERVED.value, MemberState.CONFIRMED.value

# Names of parameters differ from those of the columns that a statement sets: SQLAlchemy keeps these for itself.

_ARE_MEMBERS = (_MEMBERS.c.reservation_id == bindparam("of_reservation")) & _MEMBERS.c.replica.in_(
    bindparam("of_replicas", expanding=True)
)
_IS_DUE = (_MEMBERS.c.state == _RESERVED) & or_(
    _MEMBERS.c.expires_seconds <= bindparam("now"), _MEMBERS.c.epoch != bindparam("of_epoch")
)
_OF_GANG: BindParameter[str] = bindparam("of_gang")

HAS_DUE = select(exists().where(_IS_DUE).label("has_due"))
"""Whether a reserved member's time is over, or its epoch is past."""

RARITIES = select(
    exists().where(_IS_DUE).label("has_due"),
    exists().where(_GANGS.c.key == _OF_GANG).label("is_known"),
    exists().where(_MEMBERS.c.gang_key == _OF_GANG, _MEMBERS.c.state.in_(LIVE)).label("is_held"),
    exists().where(_RESERVATIONS.c.gang_key == _OF_GANG, _RESERVATIONS.c.is_void).label("has_void"),
    exists().where(_QUEUE.c.id > 0).label("has_queue"),
    exists()
    .where(
        _DEVICES.c.host_id == bindparam("of_host"),
        _DEVICES.c.barred_until_seconds > bindparam("now"),
        _DEVICES.c.barred_epoch == bindparam("of_epoch"),
    )
    .label("has_bars"),
)
"""What makes a claim other than most."""

HOSTS_AND_LOOKS = (
    select(
        _HOSTS.c.host_id,
        _HOSTS.c.boot_id,
        _HOSTS.c.name,
        _HOSTS.c.seen_at,
        _LOOKS.c.kind,
        _LOOKS.c.digest,
        _LOOKS.c.seen_at.label("looked_at"),
    )
    .outerjoin(_LOOKS, _LOOKS.c.host_id == _HOSTS.c.host_id)
    .where(_HOSTS.c.machine == bindparam("of_machine"))
)
"""The places of a machine and what was last read there, one row for each kind of device."""

SEE_HOST = update(_HOSTS).where(_HOSTS.c.host_id == bindparam("of_host")).values(seen_at=bindparam("at"))
SEE_DEVICES = (
    update(_LOOKS)
    .where(_LOOKS.c.host_id == bindparam("of_host"), _LOOKS.c.kind == bindparam("of_kind"))
    .values(seen_at=bindparam("at"))
)

HELD = select(_HOLDINGS.c.uuid).where(_HOLDINGS.c.host_id == bindparam("of_host"))
"""Devices of which a live member has a part."""

ADD_GANG = insert(_GANGS)
ADD_RESERVATION = insert(_RESERVATIONS).returning(_RESERVATIONS.c.id)
ADD_MEMBERS = insert(_MEMBERS).returning(_MEMBERS.c.id, _MEMBERS.c.replica)
ADD_HOLDINGS = insert(_HOLDINGS).returning(_HOLDINGS.c.member_id)
"""Give members devices; what is returned lets SQLAlchemy send all rows as one statement."""

CONFIRM = (
    update(_MEMBERS)
    .where(
        _ARE_MEMBERS,
        _MEMBERS.c.state == _RESERVED,
        _MEMBERS.c.epoch == bindparam("of_epoch"),
        _MEMBERS.c.expires_seconds > bindparam("now"),
    )
    .values(
        state=_CONFIRMED,
        supervisor_pid=bindparam("pid"),
        confirmed_seconds=bindparam("host_now"),
        held_seconds=bindparam("now"),
        renewed_seconds=bindparam("now"),
        changed_at=bindparam("at"),
    )
)
"""Confirm what is reserved and not due."""

RELEASE = (
    update(_MEMBERS)
    .where(_ARE_MEMBERS, _MEMBERS.c.state.in_(LIVE))
    .values(state=MemberState.RELEASED.value, changed_at=bindparam("at"), ended_why="")
)
OBEY = (
    update(_MEMBERS)
    .where(_ARE_MEMBERS, _MEMBERS.c.state == MemberState.REVOKED.value, _MEMBERS.c.supervisor_pid.is_not(None))
    .values(state=MemberState.RELEASED.value, changed_at=bindparam("at"))
)
"""Note that a supervisor has ended what was revoked."""

DROP_HOLDINGS = delete(_HOLDINGS).where(_HOLDINGS.c.member_id.in_(select(_MEMBERS.c.id).where(_ARE_MEMBERS)))
"""Take members' devices from them."""
