"""Who holds which device: hosts, devices, reservations and their members, within the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from sqlalchemy import select
from sqlalchemy.orm import Session

from airflow_tf.core.devices import Device, DeviceRequest, Health, Host, Member, Reading
from airflow_tf.core.errors import DevicesNeverFitError, LedgerError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted, Holder, Refused
from airflow_tf.core.states import AttemptState, ExitCause, MemberState
from airflow_tf.core.units import format_bytes
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.replicas import ensure_gang
from airflow_tf.ledger.schema import (
    LIVE,
    AttemptEntry,
    DeviceEntry,
    GangEntry,
    HostEntry,
    MemberEntry,
    ReservationEntry,
)


def record_host(session: Session, clock: Clock, host: Host, readings: Sequence[Reading]) -> None:
    """Record the host and what it read; release what an earlier boot of the machine held."""
    for earlier in session.scalars(select(HostEntry).where(HostEntry.machine == host.machine)):
        if earlier.boot_id != host.boot_id:
            for member in _live_members(session, MemberEntry.host_id == earlier.host_id):
                end_member(session, clock, member, MemberState.RELEASED, "its host was started anew")
            earlier.boot_id = host.boot_id
    session.merge(
        HostEntry(
            host_id=host.host_id, machine=host.machine, name=host.name, boot_id=host.boot_id, seen_at=clock.wall_text()
        )
    )
    session.flush()
    _record_devices(session, clock, host, readings)


def _record_devices(session: Session, clock: Clock, host: Host, readings: Sequence[Reading]) -> None:
    """Insert or update the devices read; others of the same kinds are no longer there."""
    known = {row.uuid: row for row in session.scalars(select(DeviceEntry).where(DeviceEntry.host_id == host.host_id))}
    kinds = {reading.device.kind for reading in readings}
    for row in known.values():
        if row.kind in kinds:
            row.is_present = False
    for reading in readings:
        device = reading.device
        new = known.get(device.uuid) or DeviceEntry(host_id=host.host_id, uuid=device.uuid)
        new.kind, new.name, new.index, new.visible = device.kind, device.name, device.index, device.visible
        new.memory_bytes, new.health, new.reason = device.memory_bytes, reading.health.value, reading.reason
        new.is_present, new.seen_at = True, clock.wall_text()
        session.add(new)
    session.flush()


def expire(session: Session, clock: Clock) -> None:
    """End the reserved members whose time is over or whose epoch (boot) is past. Confirmed ones never expire."""
    now = clock.now()
    for member in _live_members(session, MemberEntry.state == MemberState.RESERVED.value):
        if is_due(member, clock.epoch, now):
            end_member(session, clock, member, MemberState.EXPIRED, "its reservation expired")


def is_due(member: MemberEntry, epoch: str, now: float) -> bool:
    """Tell whether a reserved member's time is over."""
    return member.state == MemberState.RESERVED.value and (member.epoch != epoch or member.expires_seconds <= now)


def reserve(
    session: Session,
    clock: Clock,
    *,
    life_seconds: float,
    key: GangKey,
    request: DeviceRequest,
    replicas: Sequence[int],
    host: Host,
    readings: Sequence[Reading],
) -> Granted | Refused:
    """Reserve devices for those of ``replicas`` that have none, all or nothing; keep what the others have."""
    expire(session, clock)
    record_host(session, clock, host, readings)
    ensure_gang(session, clock, key)
    wanted = list(dict.fromkeys(replicas))
    held = {member.replica: member for member in live_members_of(session, key.key) if member.replica in wanted}
    for member in held.values():
        member.expires_seconds = clock.now() + life_seconds
    missing = [replica for replica in wanted if replica not in held]
    if missing:
        granted = _grant(session, clock, key, request, len(wanted), missing, host, readings)
        if isinstance(granted, Refused):
            return granted
        for member in granted:
            member.expires_seconds = clock.now() + life_seconds
            held[member.replica] = member
    session.flush()
    members = tuple(as_member(session, held[replica]) for replica in wanted)
    return Granted(max((member.reservation_id for member in members), default=0), members)


def _grant(
    session: Session,
    clock: Clock,
    key: GangKey,
    request: DeviceRequest,
    replicas: int,
    missing: Sequence[int],
    host: Host,
    readings: Sequence[Reading],
) -> list[MemberEntry] | Refused:
    """Give each of ``missing`` its devices, or say why not all can have theirs."""
    suitable = [reading for reading in readings if reading.is_blind or _suits(reading.device, request)]
    total = replicas * request.per_replica
    if len(suitable) < total and not any(reading.is_blind for reading in suitable):
        raise _never_fits(key, request, total, host, readings, len(suitable))
    rows = {
        row.uuid: row
        for row in session.scalars(
            select(DeviceEntry).where(DeviceEntry.host_id == host.host_id, DeviceEntry.is_present)
        )
    }
    obstacles = {
        reading.device.uuid: _obstacle(session, clock, rows[reading.device.uuid], reading, request)
        for reading in suitable
    }
    free = [rows[uuid] for uuid, obstacle in obstacles.items() if not obstacle]
    needed = len(missing) * request.per_replica
    if len(free) < needed:
        return Refused(needed, len(free), tuple(obstacle for obstacle in obstacles.values() if obstacle))
    reservation = ReservationEntry(gang_key=key.key, host_id=host.host_id, created_at=clock.wall_text())
    session.add(reservation)
    session.flush()
    return [
        _add_member(session, clock, reservation, replica, free[part * request.per_replica :][: request.per_replica])
        for part, replica in enumerate(missing)
    ]


def _add_member(
    session: Session, clock: Clock, reservation: ReservationEntry, replica: int, devices: Sequence[DeviceEntry]
) -> MemberEntry:
    member = MemberEntry(
        reservation_id=reservation.id,
        gang_key=reservation.gang_key,
        host_id=reservation.host_id,
        replica=replica,
        state=MemberState.RESERVED.value,
        epoch=clock.epoch,
        expires_seconds=clock.now(),
        created_at=clock.wall_text(),
        changed_at=clock.wall_text(),
    )
    session.add(member)
    session.flush()
    for device in devices:
        device.member_id = member.id
    return member


def _suits(device: Device, request: DeviceRequest) -> bool:
    """Tell whether the device could ever serve; memory that is not reported is no hindrance."""
    large_enough = device.memory_bytes is None or device.memory_bytes >= request.min_free_bytes
    named = not request.names or any(fnmatchcase(device.name, pattern) for pattern in request.names)
    return request.kind in {"auto", device.kind} and large_enough and named


def _never_fits(
    key: GangKey, request: DeviceRequest, total: int, host: Host, readings: Sequence[Reading], suitable: int
) -> DevicesNeverFitError:
    kinds = sorted({reading.device.kind for reading in readings})
    kind = request.kind if request.kind != "auto" else "/".join(kinds) or "auto"
    demands = f" with at least {format_bytes(request.min_free_bytes)}" if request.min_free_bytes else ""
    demands += f" named {' or '.join(request.names)}" if request.names else ""
    return DevicesNeverFitError(
        f"{key.label} wants {total} devices of kind {kind}{demands}",
        f"host {host.name} has {suitable}",
        "Ask for fewer devices, or run it where more are. [airflow_tf] cpu_slots and static_devices declare devices.",
    )


def _obstacle(session: Session, clock: Clock, row: DeviceEntry, reading: Reading, request: DeviceRequest) -> str:
    """Say why a suitable device cannot be had now; empty if it can."""
    if row.member_id is not None:
        return f"{row.uuid} held by {describe(holder_of(session, row), clock)}"
    if reading.health is not Health.FREE:
        return f"{row.uuid} {reading.health.value}: {reading.reason or 'no reason given'}"
    if reading.free_bytes is not None and reading.free_bytes < request.min_free_bytes:
        return f"{row.uuid}: {format_bytes(reading.free_bytes)} of {format_bytes(request.min_free_bytes)} memory free"
    return ""


def holder_of(session: Session, device: DeviceEntry) -> Holder:
    """Return who holds a device that is held."""
    member = session.get_one(MemberEntry, device.member_id)
    label = session.get_one(GangEntry, member.gang_key).label
    return Holder(device.uuid, label, member.replica, member.created_at, member.state)


def describe(holder: Holder, clock: Clock) -> str:
    """Return the holder in words: ``flights / run x / train[1] since 12:04 UTC``."""
    day, _, rest = holder.since.partition("T")
    when = rest[:5] if day == clock.wall_text().partition("T")[0] else f"{day} {rest[:5]}"
    return f"{holder.gang_label}[{holder.replica}] since {when} UTC"


def live_members_of(session: Session, gang_key: str) -> list[MemberEntry]:
    """Return the gang's members that hold devices, newest first."""
    return _live_members(session, MemberEntry.gang_key == gang_key)


def _live_members(session: Session, condition: object) -> list[MemberEntry]:
    query = select(MemberEntry).where(MemberEntry.state.in_(LIVE), condition)  # type: ignore[arg-type]
    return list(session.scalars(query.order_by(MemberEntry.reservation_id.desc(), MemberEntry.replica)))


def find_live(session: Session, member: Member) -> MemberEntry | None:
    """Return the row of a member if it still holds its devices."""
    same = (MemberEntry.reservation_id == member.reservation_id) & (MemberEntry.replica == member.replica)
    return next(iter(_live_members(session, same)), None)


def confirm(session: Session, clock: Clock, member: Member, supervisor_pid: int) -> None:
    """Turn a reserved member into one that never expires."""
    expire(session, clock)
    row = find_live(session, member)
    if row is not None and row.state == MemberState.CONFIRMED.value and row.supervisor_pid == supervisor_pid:
        return  # the answer to an earlier call was lost
    if row is None or row.state != MemberState.RESERVED.value:
        state = row.state if row is not None else _last_state(session, member)
        raise LedgerError(
            f"reservation {member.reservation_id} of replica {member.replica} cannot be confirmed",
            f"it is {state}",
            "Run the task again: it reserves anew.",
        )
    row.state, row.supervisor_pid = MemberState.CONFIRMED.value, supervisor_pid
    row.confirmed_seconds, row.changed_at = clock.host_now(), clock.wall_text()  # the supervisor's own host asks


def _last_state(session: Session, member: Member) -> str:
    query = select(MemberEntry.state).where(
        MemberEntry.reservation_id == member.reservation_id, MemberEntry.replica == member.replica
    )
    return session.scalars(query).one_or_none() or "unknown to this ledger"


def end_member(session: Session, clock: Clock, member: MemberEntry, state: MemberState, why: str) -> None:
    """Take the member's devices from it; where ``why`` is given, an attempt of it that has not ended is lost."""
    member.state, member.changed_at = state.value, clock.wall_text()
    for device in session.scalars(select(DeviceEntry).where(DeviceEntry.member_id == member.id)):
        device.member_id = None
    if why:
        _lose_attempts(session, clock, member, why)
    session.flush()


def _lose_attempts(session: Session, clock: Clock, member: MemberEntry, why: str) -> None:
    running = (AttemptState.STARTING.value, AttemptState.RUNNING.value)
    query = select(AttemptEntry).where(AttemptEntry.member_id == member.id, AttemptEntry.state.in_(running))
    for attempt in session.scalars(query):
        attempt.state, attempt.cause, attempt.message = AttemptState.LOST.value, ExitCause.INFRASTRUCTURE.value, why
        attempt.ended_at = attempt.updated_at = clock.wall_text()


def as_member(session: Session, row: MemberEntry) -> Member:
    """Return a member as its user sees it, its devices in the order of their index."""
    query = select(DeviceEntry).where(DeviceEntry.member_id == row.id).order_by(DeviceEntry.index, DeviceEntry.uuid)
    devices = tuple(_as_devices(session.scalars(query)))
    return Member(row.reservation_id, row.reservation_id, row.replica, devices, row.state)


def _as_devices(rows: Iterable[DeviceEntry]) -> Iterable[Device]:
    for row in rows:
        yield Device(row.uuid, row.kind, row.name, row.index, row.visible, row.memory_bytes)
