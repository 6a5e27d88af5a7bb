"""Give devices to gangs, all or nothing and in the order of the queue, within the caller's transaction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from airflow_tf.core.devices import Device, DeviceRequest, Health, Member, Reading
from airflow_tf.core.errors import DevicesNeverFitError, LedgerError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted, Refused, Turn, Waiting
from airflow_tf.core.matching import WHOLE_PERCENT, Offer, check_per_host, choose, count_places
from airflow_tf.core.queue import Place, Use, Waiter, offers_behind
from airflow_tf.core.states import MemberState
from airflow_tf.ledger import holdings, hosts, waiting
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.hosts import Look
from airflow_tf.ledger.replicas import ensure_gang
from airflow_tf.ledger.schema import HoldingEntry, MemberEntry, ReservationEntry, WaiterEntry


@dataclass(frozen=True, slots=True)
class Ask:
    """What a gang asks for: all of ``replicas``, without repetition, in this order."""

    key: GangKey
    request: DeviceRequest
    replicas: tuple[int, ...]
    turn: Turn


def record_host(session: Session, clock: Clock, look: Look) -> None:
    """Record the host and what it read; release what an earlier boot of the machine held."""

    def release_all(host_id: str) -> None:
        for member in holdings.live_members(session, MemberEntry.host_id == host_id):
            holdings.end_member(session, clock, member, MemberState.RELEASED, "its host was started anew")

    hosts.record(session, clock, look, release_all)


def reserve(session: Session, clock: Clock, life_seconds: float, ask: Ask, look: Look) -> Granted | Refused:
    """Reserve devices for those replicas that have none, all or nothing; keep what the others have."""
    holdings.expire(session, clock)
    record_host(session, clock, look)
    gang = ensure_gang(session, clock, ask.key)
    live = holdings.live_members_of(session, gang.key)
    held = {member.replica: member for member in live if member.replica in ask.replicas}
    for member in held.values():
        member.expires_seconds = clock.now() + life_seconds
    members = {member.replica: member for member in holdings.as_members(session, list(held.values()))}
    missing = [replica for replica in ask.replicas if replica not in held]
    if missing:
        here = {member.replica for member in live if member.host_id == look.host.host_id}
        check_per_host(ask.key.label, ask.request, len(here.union(ask.replicas)), look.host.name)
        answer = _grant(session, clock, life_seconds, ask, missing, look)
        if isinstance(answer, Refused):
            return answer
        members |= {member.replica: member for member in answer}
    waiting.served(session, gang.key, ask.replicas)
    found = tuple(members[replica] for replica in ask.replicas)
    return Granted(max((member.reservation_id for member in found), default=0), found)


def _grant(
    session: Session, clock: Clock, life_seconds: float, ask: Ask, missing: Sequence[int], look: Look
) -> list[Member] | Refused:
    """Give each of ``missing`` its devices, or put the gang into the queue and say why."""
    key, host_id = ask.key.key, look.host.host_id
    waiting.forget(session, clock)
    rows = waiting.alive_on(session, clock, host_id)
    own = waiting.own_row(rows, key, ask.replicas)
    arrived_seconds = waiting.arrival(session, clock, own, key)
    ahead = waiting.waiters(session, clock, waiting.ahead_of(rows, key, ask.replicas, ask.turn, arrived_seconds))
    first = None if ahead else _choose_first(session, clock, ask, len(missing), look)
    chosen = first if first is not None else _choose(session, clock, ask, len(missing), look, ahead)
    if isinstance(chosen, Refused):
        place = (key, host_id, ask.replicas, arrived_seconds)
        waiting.wait(session, clock, own, place, ask.request, ask.turn, str(chosen))
        return chosen
    reservation = ReservationEntry(
        gang_key=key,
        host_id=host_id,
        created_at=clock.wall_text(),
        epoch=clock.epoch,
        arrived_seconds=arrived_seconds,
        is_void=False,
    )
    session.add(reservation)
    session.flush()
    return _add_members(session, clock, life_seconds, ask, reservation, dict(zip(missing, chosen, strict=True)))


def _add_members(
    session: Session,
    clock: Clock,
    life_seconds: float,
    ask: Ask,
    reservation: ReservationEntry,
    devices: dict[int, tuple[Device, ...]],
) -> list[Member]:
    rows = {
        replica: MemberEntry(
            reservation_id=reservation.id,
            gang_key=reservation.gang_key,
            host_id=reservation.host_id,
            replica=replica,
            state=MemberState.RESERVED.value,
            epoch=clock.epoch,
            expires_seconds=clock.now() + life_seconds,
            created_at=clock.wall_text(),
            changed_at=clock.wall_text(),
            share_percent=ask.request.share_percent,
            time_limit_seconds=ask.turn.time_limit_seconds,
            ended_why="",
        )
        for replica in devices
    }
    session.add_all(rows.values())
    session.flush()
    parts = [
        {
            "member_id": row.id,
            "host_id": row.host_id,
            "uuid": device.uuid,
            "share_percent": row.share_percent,
        }
        for replica, row in rows.items()
        for device in devices[replica]
    ]
    if parts:
        session.execute(insert(HoldingEntry), parts)
    fence = reservation.id
    return [
        Member(fence, fence, replica, devices[replica], row.state, row.share_percent) for replica, row in rows.items()
    ]


# --- choosing ------------------------------------------------------------------------------------------------------


def _choose_first(
    session: Session, clock: Clock, ask: Ask, missing: int, look: Look
) -> list[tuple[Device, ...]] | None:
    """Return the first devices that nobody holds, if they serve: what a look at all devices would choose too.

    A host may have thousands of devices, and other writers wait meanwhile. None means that all must be looked at.
    """
    if ask.request.share_percent != WHOLE_PERCENT:
        return None
    host_id = look.host.host_id
    taken = holdings.held_uuids(session, host_id).union(hosts.bars(session, clock, host_id))
    free = (each for each in look.readings if each.health is Health.FREE and each.device.uuid not in taken)
    offers = [Offer(reading) for reading in islice(free, missing * ask.request.per_replica)]
    try:
        chosen = choose(ask.key.label, ask.request, len(ask.replicas), missing, offers, look.host.name)
    except DevicesNeverFitError:
        return None
    return None if isinstance(chosen, Refused) else chosen


def _choose(
    session: Session, clock: Clock, ask: Ask, missing: int, look: Look, ahead: Sequence[Waiter]
) -> list[tuple[Device, ...]] | Refused:
    """Choose among all devices what those who are ahead leave.

    :raises DevicesNeverFitError: if the host can never satisfy the request, naming a registered host that can.
    """
    readings = [*look.readings, *hosts.lost_readings(session, look)]
    places = _places(session, clock, look.host.host_id, readings)
    offers = offers_behind(ahead, places, ask.request, ask.turn.time_limit_seconds, clock.now())
    replicas, name = len(ask.replicas), look.host.name
    try:
        chosen = choose(ask.key.label, ask.request, replicas, missing, offers, name)
    except DevicesNeverFitError:
        others = [
            (other, count_places(devices, ask.request, replicas))
            for other, devices in hosts.devices_of_others(session, look.host.host_id).items()
        ]
        chosen = choose(ask.key.label, ask.request, replicas, missing, offers, name, others)
    if isinstance(chosen, Refused):
        return Refused(chosen.wanted, chosen.free, (*chosen.reasons, *map(str, ahead)))
    return chosen


def _places(session: Session, clock: Clock, host_id: str, readings: Sequence[Reading]) -> list[Place]:
    """Return the devices with who holds how much of them until when."""
    held = holdings.on_host(session, clock, host_id)
    barred = hosts.bars(session, clock, host_id)
    return [
        _place(clock, reading, held.get(reading.device.uuid, ()), barred.get(reading.device.uuid))
        for reading in readings
    ]


def _place(clock: Clock, reading: Reading, held: Sequence[holdings.Held], barred: tuple[float, str] | None) -> Place:
    uuid = reading.device.uuid
    taken = sum(each.percent for each in held)
    confirmed = sum(each.percent for each in held if each.is_confirmed)
    takers = holdings.describe(held, clock)
    obstacle = f"{uuid} held by {takers}" if any(each.percent == WHOLE_PERCENT for each in held) else ""
    uses = [Use(-math.inf, each.until, each.percent) for each in held]
    if barred is not None:
        until, why = barred
        obstacle = obstacle or f"{uuid} is not offered for {until - clock.now():.0f} s: {why}"
        uses.append(Use(-math.inf, until, WHOLE_PERCENT))
    foreign = max(0, reading.held_percent - confirmed)
    if reading.health in {Health.UNHEALTHY, Health.UNKNOWN} or (reading.health is Health.BUSY and not held):
        foreign = WHOLE_PERCENT
    if foreign:
        uses.append(Use(-math.inf, math.inf, foreign))
    return Place(Offer(reading, taken, confirmed, takers, obstacle), tuple(uses))


# --- the queue without a look at devices ----------------------------------------------------------------------------


def renew_place(session: Session, clock: Clock, key: GangKey) -> Waiting | None:
    """Renew the gang's place in the queue; tell from what is recorded whether devices seem free for it."""
    holdings.expire(session, clock)
    waiting.forget(session, clock)
    host_ids = session.scalars(select(WaiterEntry.host_id).where(WaiterEntry.gang_key == key.key))
    found: list[Waiting] = []
    for host_id in sorted(set(host_ids)):
        rows = waiting.alive_on(session, clock, host_id)
        for row in rows:
            if row.gang_key == key.key:
                row.looked_seconds = clock.now()
                is_promising = _is_promising(session, clock, row, rows)
                found.append(Waiting(clock.now() - row.arrived_seconds, is_promising))
    if not found:
        return None
    return Waiting(max(each.waited_seconds for each in found), any(each.is_promising for each in found))


def _is_promising(session: Session, clock: Clock, row: WaiterEntry, rows: Sequence[WaiterEntry]) -> bool:
    turn = Turn(row.priority, row.time_limit_seconds, row.look_seconds)
    ahead = waiting.ahead_of(rows, row.gang_key, row.replicas, turn, row.arrived_seconds)
    own = waiting.waiters(session, clock, [row])
    if not own:
        return True
    places = _places(session, clock, row.host_id, hosts.recorded_readings(session, row.host_id))
    before = waiting.waiters(session, clock, ahead)
    offers = offers_behind(before, places, own[0].request, row.time_limit_seconds, clock.now())
    try:
        chosen = choose(own[0].label, own[0].request, len(row.replicas), own[0].replicas, offers, row.host_id)
    except DevicesNeverFitError:
        return False  # for now: a device that is lost or could not be identified may come back
    return not isinstance(chosen, Refused)


def bar(session: Session, clock: Clock, member: Member, uuids: Sequence[str], why: str, seconds: float) -> None:
    """Offer devices to nobody for some seconds, and give the member's gang its place in the queue again."""
    reservation = session.get(ReservationEntry, member.reservation_id)
    if reservation is None:
        raise LedgerError(f"no reservation {member.reservation_id} in this ledger")
    reservation.is_void = True
    for uuid in uuids:
        hosts.bar(session, clock, reservation.host_id, uuid, why, seconds)


def revoke_by_hand(session: Session, clock: Clock, reservation_id: int, by: str) -> int:
    """Take what is live of a reservation away; return how many members that were."""
    members = holdings.live_members(session, MemberEntry.reservation_id == reservation_id)
    live = [member for member in members if not holdings.is_due(member, clock)]
    if not live:
        raise LedgerError(
            f"no live reservation {reservation_id} in this ledger", todo="List them with 'airflow tf reservations'."
        )
    for member in live:
        holdings.end_member(session, clock, member, MemberState.REVOKED, f"released by {by}")
    return len(live)
