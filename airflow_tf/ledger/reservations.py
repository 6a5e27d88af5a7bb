"""Give devices to gangs, all or nothing and in the order of the queue, within the caller's transaction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from airflow_tf.core.devices import Device, DeviceRequest, Health, Member, Reading
from airflow_tf.core.errors import DevicesNeverFitError, LedgerError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted, Refused, Turn, Waiting
from airflow_tf.core.matching import WHOLE_PERCENT, Offer, check_per_host, choose, count_places
from airflow_tf.core.queue import Place, Use, Waiter, offers_behind
from airflow_tf.core.states import MemberState
from airflow_tf.ledger import holdings, hosts, statements, waiting
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.engine import Transaction
from airflow_tf.ledger.hosts import Look
from airflow_tf.ledger.prepared import Step
from airflow_tf.ledger.replicas import new_gang
from airflow_tf.ledger.schema import MemberEntry, ReservationEntry, WaiterEntry


class _Rarities(Protocol):
    """What makes a claim other than most; see :data:`airflow_tf.ledger.statements.RARITIES`."""

    has_due: bool
    is_known: bool
    is_held: bool
    has_void: bool
    has_queue: bool
    has_bars: bool


class _Seen(NamedTuple):
    """What a claim has to know: what makes it other than most, what is recorded of its machine, what is held there."""

    rare: _Rarities
    recorded: Sequence[Any]
    held: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a gang asks for: all of ``replicas``, without repetition, in this order."""

    key: GangKey
    request: DeviceRequest
    replicas: tuple[int, ...]
    turn: Turn


def record_host(work: Transaction, look: Look, rows: Sequence[Any] | None = None) -> bool:
    """Record the host and what it read, and tell whether that is new; release what an earlier boot of it held.

    :param rows: what is recorded, where that was read.
    """

    def release_all(host_id: str) -> None:
        for member in holdings.live_members(work.session, MemberEntry.host_id == host_id):
            holdings.end_member(work.session, work.clock, member, MemberState.RELEASED, "its host was started anew")

    rows = rows if rows is not None else work.run_all(hosts.recorded(look))[0]
    return hosts.record(work, look, rows, release_all)


def reserve(work: Transaction, life_seconds: float, ask: Ask, look: Look) -> Granted | Refused:
    """Reserve devices for those replicas that have none, all or nothing; keep what the others have.

    A gang that must wait keeps only what a supervisor has confirmed.
    """
    seen = _see(work, ask, look)
    if seen.rare.has_due:
        holdings.expire(work)
    if record_host(work, look, seen.recorded) or seen.rare.has_due:
        seen = _see(work, ask, look)
    rare = seen.rare
    live = holdings.live_members_of(work.session, ask.key.key) if rare.is_held else []
    held = {member.replica: member for member in live if member.replica in ask.replicas}
    for member in held.values():
        member.expires_seconds = work.clock.now() + life_seconds
    members = (
        {member.replica: member for member in holdings.as_members(work.session, list(held.values()))} if held else {}
    )
    missing = [replica for replica in ask.replicas if replica not in held]
    if missing:
        here = {member.replica for member in live if member.host_id == look.host.host_id}
        check_per_host(ask.key.label, ask.request, len(here.union(ask.replicas)), look.host.name)
        answer = _grant(work, life_seconds, ask, missing, look, seen)
        if isinstance(answer, Refused):
            _let_go(work, held.values())
            return answer
        members |= {member.replica: member for member in answer}
    elif rare.has_queue:
        waiting.served(work.session, ask.key.key, ask.replicas)
    found = tuple(members[replica] for replica in ask.replicas)
    return Granted(max((member.reservation_id for member in found), default=0), found)


def outlook(session: Session, clock: Clock, ask: Ask, look: Look) -> list[tuple[Device, ...]] | Refused:
    """Return the devices that each replica would get now, or why it would wait; nothing is reserved or recorded.

    :raises DevicesNeverFitError: if the host can never satisfy the request.
    """
    check_per_host(ask.key.label, ask.request, len(ask.replicas), look.host.name)
    rows = waiting.alive_on(session, clock, look.host.host_id)
    earlier = waiting.ahead_of(rows, ask.key.key, ask.replicas, ask.turn, clock.now())
    return _choose(session, clock, ask, len(ask.replicas), look, waiting.waiters(session, clock, earlier))


def _let_go(work: Transaction, held: Iterable[MemberEntry]) -> None:
    """End what is only reserved: two gangs that each wait for what the other has reserved would wait for ever."""
    for member in held:
        if member.state == MemberState.RESERVED.value:
            why = "given back: other replicas of its gang have to wait"
            holdings.end_member(work.session, work.clock, member, MemberState.RELEASED, why)


def _see(work: Transaction, ask: Ask, look: Look) -> _Seen:
    of_host = {"of_host": look.host.host_id}
    (rare,), recorded, held = work.run_all(
        statements.RARITIES.given(of_gang=ask.key.key, **of_host),
        hosts.recorded(look),
        statements.HELD.given(**of_host),
    )
    return _Seen(rare, recorded, held)


def _grant(
    work: Transaction, life_seconds: float, ask: Ask, missing: Sequence[int], look: Look, seen: _Seen
) -> list[Member] | Refused:
    """Give each of ``missing`` its devices and commit, or put the gang into the queue and say why."""
    key, host_id, clock, rare = ask.key.key, look.host.host_id, work.clock, seen.rare
    new = [] if rare.is_known else [statements.ADD_GANG.given(**new_gang(ask.key))]
    if rare.has_queue:
        waiting.forget(work.session, clock)
    rows = waiting.alive_on(work.session, clock, host_id) if rare.has_queue else []
    own = waiting.own_row(rows, key, ask.replicas)
    has_place = own is not None or rare.has_void
    arrived_seconds = waiting.arrival(work.session, clock, own, key) if has_place else clock.now()
    earlier = waiting.ahead_of(rows, key, ask.replicas, ask.turn, arrived_seconds)
    ahead = waiting.waiters(work.session, clock, earlier) if earlier else []
    first = None if ahead else _choose_first(work, ask, len(missing), look, seen)
    chosen = first if first is not None else _choose(work.session, clock, ask, len(missing), look, ahead)
    if isinstance(chosen, Refused):
        work.run_all(*new)
        place = (key, host_id, ask.replicas, arrived_seconds)
        waiting.wait(work.session, clock, own, place, ask.request, ask.turn, str(chosen))
        return chosen
    if rare.has_queue:
        waiting.served(work.session, key, ask.replicas)
    devices = dict(zip(missing, chosen, strict=True))
    *_, (reservation,), _, _ = work.finish(*new, *_adding(ask, host_id, life_seconds, arrived_seconds, devices))
    fence, state, percent = reservation.id, MemberState.RESERVED.value, ask.request.share_percent
    return [Member(fence, fence, replica, found, state, percent) for replica, found in devices.items()]


def _adding(
    ask: Ask, host_id: str, life_seconds: float, arrived_seconds: float, devices: dict[int, tuple[Device, ...]]
) -> tuple[Step, Step, Step]:
    """Return the statements that add a reservation, its members and what they hold; the first one gives its id."""
    common = {"gang_key": ask.key.key, "host_id": host_id}
    shared = {**common, "share_percent": ask.request.share_percent}
    return (
        statements.ADD_RESERVATION.given(**common, arrived_seconds=arrived_seconds),
        statements.ADD_MEMBERS.given(
            **shared,
            of_replicas=list(devices),
            life_seconds=life_seconds,
            time_limit_seconds=ask.turn.time_limit_seconds,
        ),
        statements.ADD_HOLDINGS.given(
            **shared,
            of_replicas=[replica for replica, found in devices.items() for _ in found],
            uuids=[device.uuid for found in devices.values() for device in found],
        ),
    )


# --- choosing ------------------------------------------------------------------------------------------------------


def _choose_first(
    work: Transaction, ask: Ask, missing: int, look: Look, seen: _Seen
) -> list[tuple[Device, ...]] | None:
    """Return the first devices that nobody holds, if they serve: what a look at all devices would choose too.

    A host may have thousands of devices, and other writers wait meanwhile. None means that all must be looked at.
    """
    if ask.request.share_percent != WHOLE_PERCENT:
        return None
    host_id = look.host.host_id
    taken = {held.uuid for held in seen.held}
    if seen.rare.has_bars:
        taken.update(hosts.bars(work.session, work.clock, host_id))
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
        how_long = "" if until == math.inf else f" for {until - clock.now():.0f} s"
        obstacle = obstacle or f"{uuid} is not offered{how_long}: {why}"
        uses.append(Use(-math.inf, until, WHOLE_PERCENT))
    foreign = max(0, reading.held_percent - confirmed)
    if reading.health in {Health.UNHEALTHY, Health.UNKNOWN} or (reading.health is Health.BUSY and not held):
        foreign = WHOLE_PERCENT
    if foreign:
        uses.append(Use(-math.inf, math.inf, foreign))
    return Place(Offer(reading, taken, confirmed, takers, obstacle), tuple(uses))


# --- the queue without a look at devices ----------------------------------------------------------------------------


def renew_place(work: Transaction, key: GangKey) -> Waiting | None:
    """Renew the gang's place in the queue; tell from what is recorded whether devices seem free for it."""
    session, clock = work.session, work.clock
    holdings.expire(work)
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


def drain(session: Session, clock: Clock, host_id: str, by: str, why: str) -> None:
    """Offer nothing of a host's machine until it is taken back, and take back at once what is only reserved there."""
    hosts.drain(session, host_id, f"by {by} at {clock.wall_text()}: {why}")
    is_reserved = MemberEntry.state == MemberState.RESERVED.value
    for member in holdings.live_members(session, and_(is_reserved, MemberEntry.host_id.in_(hosts.places_of(host_id)))):
        holdings.end_member(session, clock, member, MemberState.REVOKED, f"its host was drained by {by}: {why}")


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
