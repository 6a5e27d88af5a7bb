"""Hosts, their devices and what was last read of them, within the caller's transaction."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, exists, select, update
from sqlalchemy.orm import Session

from airflow_tf.core.devices import Device, Health, Host, Reading
from airflow_tf.ledger import statements
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.engine import Transaction
from airflow_tf.ledger.prepared import Step
from airflow_tf.ledger.schema import DeviceEntry, HoldingEntry, HostEntry, LookEntry, ReservationEntry, WaiterEntry

LOST = "lost: its host no longer lists it"
_recorded: Callable[[Reading], tuple[Any, ...]] = attrgetter(
    *(f"device.{name}" for name in ("uuid", "kind", "name", "index", "visible", "memory_bytes")),
    "health._value_",  # as its property value, at a tenth of the time
    "reason",
)
"""What is kept of a reading; a host may have thousands of them, and each claim has to know whether any has changed."""

_KINDS_THAT_GET_LOST = frozenset({"gpu"})  # others are declared: what is declared no more is not there


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a host's devices, prepared outside a transaction; ``digests`` are over all that is recorded."""

    host: Host
    readings: tuple[Reading, ...]
    digests: dict[str, str]

    @classmethod
    def of(cls, host: Host, readings: Sequence[Reading]) -> Look:
        """Sort the readings as devices are given out, and digest those of each kind."""
        kinds: dict[str, list[tuple[Any, ...]]] = {}
        for reading, recorded in zip(readings, map(_recorded, readings), strict=True):
            kinds.setdefault(reading.device.kind, []).append(recorded)
        digests = {
            kind: hashlib.blake2b(f"{host.boot_id}\n{found}".encode(errors="replace"), digest_size=16).hexdigest()
            for kind, found in kinds.items()
        }
        return cls(host, tuple(sorted(readings, key=attrgetter("device.index"))), digests)


def recorded(look: Look) -> Step:
    """Return the statement that tells what is recorded of the host's machine."""
    return statements.HOSTS_AND_LOOKS.given(of_machine=look.host.machine)


def record(work: Transaction, look: Look, rows: Sequence[Any], on_new_boot: Callable[[str], None]) -> bool:
    """Record the host and what was read, as far as that is new; tell whether anything was.

    :param rows: what is :func:`recorded`.
    :param on_new_boot: called with the id of each host of this machine that is of an earlier boot.
    """
    own = [row for row in rows if row.host_id == look.host.host_id]
    known = {row.kind: row.digest for row in own}
    is_new = (
        not own
        or own[0].name != look.host.name
        or any(row.boot_id != look.host.boot_id for row in rows)
        or any(known.get(kind) != digest for kind, digest in look.digests.items())
    )
    if is_new:
        _record(work.session, work.clock, look, on_new_boot)
    elif any(at != work.clock.wall_text() for row in own for at in (row.seen_at, row.looked_at)):
        host_id = look.host.host_id
        work.run_all(
            statements.SEE_HOST.given(of_host=host_id),
            statements.SEE_DEVICES.given(of_host=host_id, of_kinds=list(look.digests)),
        )
    return is_new


def _record(session: Session, clock: Clock, look: Look, on_new_boot: Callable[[str], None]) -> None:
    host = look.host
    same_machine = {
        row.host_id: row for row in session.scalars(select(HostEntry).where(HostEntry.machine == host.machine))
    }
    for earlier in same_machine.values():
        if earlier.boot_id != host.boot_id:
            on_new_boot(earlier.host_id)
            earlier.boot_id = host.boot_id
            if earlier.host_id != host.host_id:
                _forget(session, earlier)
    row = same_machine.get(host.host_id)
    if row is None:
        row = HostEntry(host_id=host.host_id, machine=host.machine, boot_id=host.boot_id)
        row.drained_why = next((each.drained_why for each in same_machine.values() if each.drained_why), None)
    row.name, row.seen_at = host.name, clock.wall_text()
    session.add(row)
    session.flush()
    known = {entry.kind: entry for entry in session.scalars(select(LookEntry).where(LookEntry.host_id == host.host_id))}
    for kind, digest in look.digests.items():
        entry = known.get(kind)
        if entry is None:
            entry = LookEntry(host_id=host.host_id, kind=kind, digest="", seen_at="")
            session.add(entry)
        if entry.digest != digest:
            _record_devices(session, host, kind, [each for each in look.readings if each.device.kind == kind])
        entry.digest, entry.seen_at = digest, clock.wall_text()
    session.flush()


def _forget(session: Session, place: HostEntry) -> None:
    """Remove a place of an earlier boot, where nothing is held: it may never come again, or is recorded anew.

    Not where a gang waits, which looks again when its devices seem free; the place itself stays while runs name it.
    """
    host_id = place.host_id
    if session.scalar(select(exists().where(WaiterEntry.host_id == host_id))):
        return
    session.execute(delete(LookEntry).where(LookEntry.host_id == host_id))
    session.execute(delete(DeviceEntry).where(DeviceEntry.host_id == host_id))
    if not session.scalar(select(exists().where(ReservationEntry.host_id == host_id))):
        session.delete(place)


def _record_devices(session: Session, host: Host, kind: str, readings: Iterable[Reading]) -> None:
    """Insert or update the devices read; others of the same kind are no longer there.

    A device of which a holder is known is recorded as free beside that: its lock is that holder's, who may leave
    before the next look.
    """
    of_kind = select(DeviceEntry).where(DeviceEntry.host_id == host.host_id, DeviceEntry.kind == kind)
    known = {each.uuid: each for each in session.scalars(of_kind)}
    held = set(session.scalars(select(HoldingEntry.uuid).where(HoldingEntry.host_id == host.host_id)))
    for each in known.values():
        each.is_present = False
    for reading in readings:
        device = reading.device
        row = known.get(device.uuid) or session.get(DeviceEntry, (host.host_id, device.uuid))
        if row is None:
            row = DeviceEntry(host_id=host.host_id, uuid=device.uuid)
        _, row.kind, row.name, row.index, row.visible, row.memory_bytes, row.health, row.reason = _recorded(reading)
        if device.uuid in held and reading.health is Health.BUSY:
            row.health, row.reason = Health.FREE.value, ""
        row.is_present, row.boot_id = True, host.boot_id
        session.add(row)
    session.flush()


def lost_readings(session: Session, look: Look) -> list[Reading]:
    """Return the devices that the host has listed in this boot and lists no more; they are waited for."""
    query = select(DeviceEntry).where(
        DeviceEntry.host_id == look.host.host_id,
        DeviceEntry.kind.in_(look.digests),
        is_lost(),
        DeviceEntry.boot_id == look.host.boot_id,
    )
    rows = session.scalars(query.order_by(DeviceEntry.index))
    return [Reading(as_device(row), Health.UNHEALTHY, LOST) for row in rows]


def is_lost() -> ColumnElement[bool]:
    """Return what is true of a device that its host lists no more; of an earlier boot nothing is known to be lost."""
    return and_(
        DeviceEntry.kind.in_(_KINDS_THAT_GET_LOST), DeviceEntry.visible != "", DeviceEntry.is_present.is_(False)
    )


def recorded_readings(session: Session, host_id: str) -> list[Reading]:
    """Return what was last read of a host's devices, as far as that is recorded."""
    query = select(DeviceEntry).where(DeviceEntry.host_id == host_id, DeviceEntry.is_present)
    rows = session.scalars(query.order_by(DeviceEntry.index))
    return [Reading(as_device(row), Health(row.health), row.reason) for row in rows]


def devices_of_others(session: Session, host_id: str) -> dict[str, list[Device]]:
    """Return the name and the devices of each other registered host."""
    query = select(HostEntry.name, DeviceEntry).join(DeviceEntry, DeviceEntry.host_id == HostEntry.host_id)
    found: dict[str, list[Device]] = {}
    for name, row in session.execute(query.where(HostEntry.host_id != host_id, DeviceEntry.is_present)):
        found.setdefault(name, []).append(as_device(row))
    return found


def bars(session: Session, clock: Clock, host_id: str) -> dict[str, tuple[float, str]]:
    """Return uuid -> (until when, why) of the devices that nobody is offered now: of a drained host all."""
    drained_why = session.scalar(select(HostEntry.drained_why).where(HostEntry.host_id == host_id))
    if drained_why is not None:
        uuids = session.scalars(select(DeviceEntry.uuid).where(DeviceEntry.host_id == host_id))
        return dict.fromkeys(uuids, (math.inf, f"its host is drained, {drained_why}"))
    query = select(DeviceEntry.uuid, DeviceEntry.barred_until_seconds, DeviceEntry.barred_why).where(
        DeviceEntry.host_id == host_id,
        DeviceEntry.barred_until_seconds > clock.now(),
        DeviceEntry.barred_epoch == clock.epoch,
    )
    return {uuid: (until or 0.0, why or "") for uuid, until, why in session.execute(query)}


def bar(session: Session, clock: Clock, host_id: str, uuid: str, why: str, seconds: float) -> None:
    """Offer the device to nobody for some seconds."""
    row = session.get_one(DeviceEntry, (host_id, uuid))
    row.barred_epoch, row.barred_until_seconds, row.barred_why = clock.epoch, clock.now() + seconds, why


def drain(session: Session, host_id: str, why: str) -> None:
    """Offer nothing of the host's machine until it is taken back; what has devices there keeps them."""
    session.execute(update(HostEntry).where(HostEntry.host_id.in_(places_of(host_id))).values(drained_why=why))


def undrain(session: Session, host_id: str) -> None:
    """Take a host's machine back into use (idempotent)."""
    session.execute(update(HostEntry).where(HostEntry.host_id.in_(places_of(host_id))).values(drained_why=None))


def places_of(host_id: str) -> Select[str]:
    """Return a query for the ids of all places of a host's machine: its next task may be in another one."""
    machine = select(HostEntry.machine).where(HostEntry.host_id == host_id).scalar_subquery()
    return select(HostEntry.host_id).where(HostEntry.machine == machine)


def as_device(row: DeviceEntry) -> Device:
    """Return a device as its user sees it."""
    return Device(row.uuid, row.kind, row.name, row.index, row.visible, row.memory_bytes)
