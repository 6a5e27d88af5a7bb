"""Who holds which device, from reserved over confirmed to the end, within the caller's transaction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy import ColumnElement, and_, delete, exists, or_, select, update
from sqlalchemy.orm import Session

from airflow_tf.core.devices import Device, Member
from airflow_tf.core.errors import LedgerError
from airflow_tf.core.ledger import ConfirmedMember, Holder
from airflow_tf.core.states import AttemptState, ExitCause, MemberState
from airflow_tf.ledger import statements
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.engine import Transaction
from airflow_tf.ledger.hosts import as_device
from airflow_tf.ledger.prepared import Step
from airflow_tf.ledger.schema import LIVE, RUNNING, AttemptEntry, DeviceEntry, GangEntry, HoldingEntry, MemberEntry

SUSPECT = "suspect"
"""Shown in place of ``confirmed`` while the member's supervisor is silent; nothing is taken from it for that."""

SUSPECT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Held:
    """A live member's part of one device; ``until`` is when it ends at the latest, by its declared limit."""

    holder: Holder
    percent: int
    until: float
    is_confirmed: bool
    suspect_since: str = ""

    def describe(self, clock: Clock) -> str:
        """Return the holder in words: ``flights / run x / train[1] since 12:04 UTC``."""
        words = f"{self.holder.gang_label}[{self.holder.replica}] since {_time_of_day(self.holder.since, clock)}"
        suspect = f", suspect since {_time_of_day(self.suspect_since, clock)}" if self.suspect_since else ""
        return words + suspect


def _time_of_day(wall_text: str, clock: Clock) -> str:
    day, _, rest = wall_text.partition("T")
    return f"{rest[:5] if day == clock.wall_text().partition('T')[0] else f'{day} {rest[:5]}'} UTC"


# --- members -------------------------------------------------------------------------------------------------------


def live_members(session: Session, condition: ColumnElement[bool]) -> list[MemberEntry]:
    """Return the members that hold devices, newest fence first."""
    query = select(MemberEntry).where(MemberEntry.state.in_(LIVE), condition)
    return list(session.scalars(query.order_by(MemberEntry.reservation_id.desc(), MemberEntry.replica)))


def live_members_of(session: Session, gang_key: str) -> list[MemberEntry]:
    """Return the gang's members that hold devices, newest fence first."""
    return live_members(session, MemberEntry.gang_key == gang_key)


def find_live(session: Session, member: Member) -> MemberEntry | None:
    """Return the row of a member if it still holds its devices."""
    return next(iter(live_members(session, _is(member))), None)


def _is(member: Member) -> ColumnElement[bool]:
    return and_(MemberEntry.reservation_id == member.reservation_id, MemberEntry.replica == member.replica)


def expire(work: Transaction) -> None:
    """End the reserved members whose time is over or whose epoch (boot) is past. Confirmed ones never expire."""
    session, clock = work.session, work.clock
    is_over = or_(MemberEntry.expires_seconds <= clock.now(), MemberEntry.epoch != clock.epoch)
    for member in live_members(session, and_(MemberEntry.state == MemberState.RESERVED.value, is_over)):
        end_member(session, clock, member, MemberState.EXPIRED, "its reservation expired")


def is_due(member: MemberEntry, clock: Clock) -> bool:
    """Tell whether a member has expired, although no writer has ended it yet."""
    is_over = member.epoch != clock.epoch or member.expires_seconds <= clock.now()
    return member.state == MemberState.RESERVED.value and is_over


def end_member(session: Session, clock: Clock, member: MemberEntry, state: MemberState, why: str) -> None:
    """Take the member's devices from it; where ``why`` is given, an attempt of it that has not ended is lost."""
    member.state, member.changed_at, member.ended_why = state.value, clock.wall_text(), why
    session.execute(delete(HoldingEntry).where(HoldingEntry.member_id == member.id))
    if why:
        session.execute(
            update(AttemptEntry)
            .where(AttemptEntry.member_id == member.id, AttemptEntry.state.in_(RUNNING))
            .values(
                state=AttemptState.LOST.value,
                cause=ExitCause.INFRASTRUCTURE.value,
                message=why,
                ended_at=clock.wall_text(),
                updated_at=clock.wall_text(),
            )
        )
    session.flush()


def release(work: Transaction, members: Sequence[Member]) -> None:
    """End members that their holder gives back, or whose revocation its supervisor has obeyed."""
    names = _named(members)
    work.finish(statements.RELEASE.given(**names), statements.DROP_HOLDINGS.given(**names))


def _named(members: Sequence[Member]) -> dict[str, list[int]]:
    """Return what names the members in a statement."""
    found = sorted({(member.reservation_id, member.replica) for member in members})
    return {"of_reservations": [number for number, _ in found], "of_replicas": [replica for _, replica in found]}


def confirm(work: Transaction, members: Sequence[Member], supervisor_pid: int) -> bool:
    """Turn reserved members into ones that never expire, if all are reserved; tell whether that was done."""
    (confirmed,) = work.finish(_confirming(work, members, supervisor_pid))
    return bool(confirmed)


def _confirming(work: Transaction, members: Sequence[Member], supervisor_pid: int) -> Step:
    names = _named(members)
    count = len(names["of_replicas"])
    return statements.CONFIRM.given(**names, count=count, pid=supervisor_pid, host_now=work.host_now())


def confirm_again(work: Transaction, members: Sequence[Member], supervisor_pid: int) -> None:
    """Do as :func:`confirm` where some may have been confirmed before."""
    for member in members:
        if not any(work.run_all(_confirming(work, [member], supervisor_pid))):
            _check_confirmed(work.session, work.clock, member, supervisor_pid)


def _check_confirmed(session: Session, clock: Clock, member: Member, supervisor_pid: int) -> None:
    """Accept what was confirmed before: the answer to an earlier call was lost.

    Not where it has been used since: the same pid was then that of a supervisor that has died and is not swept yet.
    """
    row = find_live(session, member)
    if (
        row is not None
        and (row.state, row.supervisor_pid) == (MemberState.CONFIRMED.value, supervisor_pid)
        and not session.scalar(select(exists().where(AttemptEntry.member_id == row.id)))
    ):
        row.confirmed_seconds = clock.host_now()
        return
    state = row.state if row is not None and row.state != MemberState.RESERVED.value else _last_state(session, member)
    raise LedgerError(
        f"reservation {member.reservation_id} of replica {member.replica} cannot be confirmed",
        f"it is {state}",
        "Run the task again: it reserves anew.",
    )


def _last_state(session: Session, member: Member) -> str:
    state = session.scalars(select(MemberEntry.state).where(_is(member))).one_or_none()
    if state == MemberState.RESERVED.value:
        return MemberState.EXPIRED.value
    return state or "unknown to this ledger"


def renew(session: Session, clock: Clock, gang_key: str, supervisor_pid: int, life_seconds: float) -> None:
    """Postpone the expiry of what is reserved for the gang; note a sign of the supervisor for what it confirmed."""
    of_gang = update(MemberEntry).where(MemberEntry.gang_key == gang_key)
    reserved = of_gang.where(MemberEntry.state == MemberState.RESERVED.value)
    session.execute(reserved.values(expires_seconds=clock.now() + life_seconds))
    confirmed = of_gang.where(
        MemberEntry.state == MemberState.CONFIRMED.value, MemberEntry.supervisor_pid == supervisor_pid
    )
    session.execute(confirmed.values(epoch=clock.epoch, renewed_seconds=clock.now()))


def revoked_of(session: Session, gang_key: str, supervisor_pid: int) -> tuple[int, ...]:
    """Return the replicas whose newest member this supervisor had confirmed, and was revoked and not yet given back."""
    query = select(MemberEntry.replica, MemberEntry.state, MemberEntry.supervisor_pid)
    newest = {
        replica: (state, pid)
        for replica, state, pid in session.execute(
            query.where(MemberEntry.gang_key == gang_key).order_by(MemberEntry.reservation_id)
        )
    }
    return tuple(sorted(number for number, last in newest.items() if last == (MemberState.REVOKED, supervisor_pid)))


# --- what is shown of them -----------------------------------------------------------------------------------------


def as_member(session: Session, row: MemberEntry) -> Member:
    """Return a member as its user sees it, its devices in the order of their index."""
    return as_members(session, [row])[0]


def as_members(session: Session, rows: Sequence[MemberEntry]) -> list[Member]:
    """Return members as their users see them."""
    same = and_(DeviceEntry.host_id == HoldingEntry.host_id, DeviceEntry.uuid == HoldingEntry.uuid)
    query = select(HoldingEntry.member_id, DeviceEntry).join(DeviceEntry, same)
    query = query.where(HoldingEntry.member_id.in_([row.id for row in rows]))
    devices: dict[int, list[Device]] = {}
    for member_id, device in session.execute(query.order_by(DeviceEntry.index, DeviceEntry.uuid)):
        devices.setdefault(member_id, []).append(as_device(device))
    return [
        Member(
            row.reservation_id,
            row.reservation_id,
            row.replica,
            tuple(devices.get(row.id, ())),
            row.state,
            row.share_percent,
        )
        for row in rows
    ]


def as_confirmed(session: Session, row: MemberEntry) -> ConfirmedMember:
    """Return a confirmed member with the token of its last attempt."""
    tokens = select(AttemptEntry.token).where(AttemptEntry.member_id == row.id)
    newest = tokens.order_by(AttemptEntry.generation.desc(), AttemptEntry.attempt.desc()).limit(1)
    return ConfirmedMember(
        member=as_member(session, row),
        gang_label=f"{session.get_one(GangEntry, row.gang_key).label}[{row.replica}]",
        supervisor_pid=row.supervisor_pid or 0,
        confirmed_seconds=row.confirmed_seconds or 0.0,
        token=session.scalar(newest),
    )


def on_host(session: Session, clock: Clock, host_id: str) -> dict[str, list[Held]]:
    """Return uuid -> who holds how much of it now."""
    query = (
        select(HoldingEntry.uuid, HoldingEntry.share_percent, MemberEntry, GangEntry)
        .join(MemberEntry, MemberEntry.id == HoldingEntry.member_id)
        .join(GangEntry, GangEntry.key == MemberEntry.gang_key)
        .where(HoldingEntry.host_id == host_id)
        .order_by(MemberEntry.id)
    )
    found: dict[str, list[Held]] = {}
    for uuid, percent, member, gang in session.execute(query):
        if not is_due(member, clock):
            found.setdefault(uuid, []).append(_held(clock, uuid, percent, member, gang))
    return found


def _held(clock: Clock, uuid: str, percent: int, member: MemberEntry, gang: GangEntry) -> Held:
    begun = member.held_seconds if member.held_seconds is not None else member.expires_seconds
    is_limited = member.time_limit_seconds is not None and member.epoch == clock.epoch
    return Held(
        Holder(uuid, gang.label, member.replica, member.created_at, shown_state(clock, member), percent),
        percent,
        begun + (member.time_limit_seconds or 0.0) if is_limited else math.inf,
        member.state == MemberState.CONFIRMED.value,
        suspect_since(clock, member),
    )


def shown_state(clock: Clock, member: MemberEntry) -> str:
    """Return the member's state, ``suspect`` for a confirmed one whose supervisor is silent."""
    return SUSPECT if suspect_since(clock, member) else member.state


def suspect_since(clock: Clock, member: MemberEntry) -> str:
    """Return the wall time since which the supervisor of a confirmed member has been silent too long, else nothing."""
    if member.state != MemberState.CONFIRMED.value:
        return ""
    if member.renewed_seconds is None or member.epoch != clock.epoch:
        return member.changed_at  # nothing was heard of it in this boot
    late_seconds = clock.now() - member.renewed_seconds - SUSPECT_SECONDS
    if late_seconds <= 0:
        return ""
    earlier = replace(clock, wall=lambda: clock.wall() - timedelta(seconds=late_seconds))
    return earlier.wall_text()


def describe(held: Iterable[Held], clock: Clock) -> str:
    """Return several holders in words."""
    return ", ".join(each.describe(clock) for each in held)
