"""What the command line and the pages show of a ledger: plain rows, read only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, exists, or_, select
from sqlalchemy.orm import Session, aliased

from airflow_tf.core.ledger import Holder
from airflow_tf.core.states import MemberState
from airflow_tf.ledger import reservations
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.schema import LIVE, AttemptEntry, DeviceEntry, GangEntry, GenerationEntry, HostEntry, MemberEntry
from airflow_tf.ledger.store import Ledger

WAITING = "waiting"
"""State of a replica whose program was not started yet."""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device as last read; ``holder`` is None while no reservation holds it; ``seen`` is wall time."""

    host: str
    uuid: str
    kind: str
    name: str
    index: int
    memory_bytes: int | None
    health: str
    reason: str
    seen: str
    holder: Holder | None


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One replica in its current generation; ``state`` is that of its last attempt, or ``waiting``.

    ``started`` and ``ended`` (wall time) are the last attempt's.
    """

    replica: int
    devices: tuple[str, ...]
    generation: int = 0
    state: str = WAITING
    attempts: int = 0
    pid: int | None = None
    step: int | None = None
    cause: str = ""
    message: str = ""
    started: str | None = None
    ended: str | None = None


@dataclass(frozen=True, slots=True)
class RunRow:
    """One gang; ``since`` and ``renewed`` (its supervisor's last heartbeat) are wall time."""

    key: str
    label: str
    dag_id: str
    run_id: str
    task_id: str
    count: int | None
    folder: str | None
    since: str
    supervisor_pid: int | None
    renewed: str | None
    cancelled_by: str | None
    replicas: tuple[ReplicaRow, ...]


@dataclass(frozen=True, slots=True)
class ReservationRow:
    """One replica's live part of a reservation; ``expires_in_seconds`` is None once confirmed."""

    reservation_id: int
    gang_key: str
    gang_label: str
    replica: int
    state: str
    host: str
    devices: tuple[str, ...]
    since: str
    supervisor_pid: int | None
    expires_in_seconds: float | None


class LedgerReader:
    """Read a ledger; every method is one consistent look."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def devices(self) -> list[DeviceRow]:
        """Return every device that its host still has, by host, kind and index."""
        return self._ledger.read(self._devices)

    def runs(
        self,
        dag_id: str | None = None,
        *,
        name: str | None = None,
        state: str | None = None,
        limit: int | None = None,
    ) -> list[RunRow]:
        """Return gangs, newest first.

        :param dag_id: only those of this DAG.
        :param name: only those of this run id, or whose key begins so.
        :param state: only those of which a replica is in this state.
        :param limit: at most so many.
        """
        conditions = [
            *([GangEntry.dag_id == dag_id] if dag_id is not None else []),
            *([or_(GangEntry.run_id == name, GangEntry.key.startswith(name, autoescape=True))] if name else []),
            *([_has_replica_in(state)] if state is not None else []),
        ]
        return self._ledger.read(lambda session, clock: self._runs(session, clock, conditions, limit))

    def reservations(self) -> list[ReservationRow]:
        """Return who holds devices now, newest first."""
        return self._ledger.read(self._reservations)

    def _devices(self, session: Session, clock: Clock) -> list[DeviceRow]:
        query = (
            select(DeviceEntry, HostEntry.name)
            .join(HostEntry, HostEntry.host_id == DeviceEntry.host_id)
            .where(DeviceEntry.is_present)
            .order_by(HostEntry.name, DeviceEntry.kind, DeviceEntry.index)
        )
        return [
            DeviceRow(
                host=host,
                uuid=row.uuid,
                kind=row.kind,
                name=row.name,
                index=row.index,
                memory_bytes=row.memory_bytes,
                health=row.health,
                reason=row.reason,
                seen=row.seen_at,
                holder=_holder(session, clock, row),
            )
            for row, host in session.execute(query)
        ]

    def _runs(
        self, session: Session, clock: Clock, conditions: Sequence[ColumnElement[bool]], limit: int | None
    ) -> list[RunRow]:
        query = select(GangEntry).where(*conditions).order_by(GangEntry.created_at.desc(), GangEntry.key).limit(limit)
        return [
            RunRow(
                key=gang.key,
                label=gang.label,
                dag_id=gang.dag_id,
                run_id=gang.run_id,
                task_id=gang.task_id,
                count=gang.count,
                folder=gang.folder,
                since=gang.created_at,
                supervisor_pid=gang.supervisor_pid,
                renewed=gang.renewed_at,
                cancelled_by=gang.cancelled_by,
                replicas=_replicas(session, clock, gang.key),
            )
            for gang in session.scalars(query)
        ]

    def _reservations(self, session: Session, clock: Clock) -> list[ReservationRow]:
        query = (
            select(MemberEntry, GangEntry, HostEntry.name)
            .join(GangEntry, GangEntry.key == MemberEntry.gang_key)
            .join(HostEntry, HostEntry.host_id == MemberEntry.host_id)
            .where(MemberEntry.state.in_(LIVE))
            .order_by(MemberEntry.reservation_id.desc(), MemberEntry.replica)
        )
        now = clock.now()
        return [
            ReservationRow(
                reservation_id=member.reservation_id,
                gang_key=gang.key,
                gang_label=gang.label,
                replica=member.replica,
                state=member.state,
                host=host,
                devices=tuple(device.uuid for device in reservations.as_member(session, member).devices),
                since=member.created_at,
                supervisor_pid=member.supervisor_pid,
                expires_in_seconds=_time_left(member, now),
            )
            for member, gang, host in session.execute(query)
            if not _is_over(clock, member)
        ]


def _has_replica_in(state: str) -> ColumnElement[bool]:
    """Tell, in SQL, whether a replica of a gang is in ``state``: by the last attempt of its last generation."""
    later_generation, later = aliased(GenerationEntry), aliased(AttemptEntry)
    of_gang = and_(
        GenerationEntry.gang_key == GangEntry.key,
        ~exists().where(
            later_generation.gang_key == GenerationEntry.gang_key,
            later_generation.replica == GenerationEntry.replica,
            later_generation.generation > GenerationEntry.generation,
        ),
    )
    of_generation = and_(
        AttemptEntry.gang_key == GenerationEntry.gang_key,
        AttemptEntry.replica == GenerationEntry.replica,
        AttemptEntry.generation == GenerationEntry.generation,
    )
    if state == WAITING:
        never_entered = exists().where(
            MemberEntry.gang_key == GangEntry.key,
            MemberEntry.state.in_(LIVE),
            ~exists().where(
                GenerationEntry.gang_key == MemberEntry.gang_key, GenerationEntry.replica == MemberEntry.replica
            ),
        )
        return or_(exists().where(of_gang, ~exists().where(of_generation)), never_entered)
    is_last = ~exists().where(
        later.gang_key == AttemptEntry.gang_key,
        later.replica == AttemptEntry.replica,
        later.generation == AttemptEntry.generation,
        later.attempt > AttemptEntry.attempt,
    )
    return exists().where(of_gang, of_generation, AttemptEntry.state == state, is_last)


def _holder(session: Session, clock: Clock, device: DeviceEntry) -> Holder | None:
    if device.member_id is None or _is_over(clock, session.get_one(MemberEntry, device.member_id)):
        return None
    return reservations.holder_of(session, device)


def _is_over(clock: Clock, member: MemberEntry) -> bool:
    """Tell whether a member has expired, although no writer has ended it yet."""
    return reservations.is_due(member, clock.epoch, clock.now())


def _replicas(session: Session, clock: Clock, gang_key: str) -> tuple[ReplicaRow, ...]:
    query = select(GenerationEntry).where(GenerationEntry.gang_key == gang_key).order_by(GenerationEntry.generation)
    current = {row.replica: row for row in session.scalars(query)}
    held = {
        member.replica: tuple(device.uuid for device in reservations.as_member(session, member).devices)
        for member in reservations.live_members_of(session, gang_key)
        if not _is_over(clock, member)
    }
    return tuple(
        _replica(session, current.get(number), number, held.get(number, ())) for number in sorted({*current, *held})
    )


def _time_left(member: MemberEntry, now: float) -> float | None:
    return None if member.state == MemberState.CONFIRMED.value else round(member.expires_seconds - now, 1)


def _replica(session: Session, generation: GenerationEntry | None, number: int, devices: tuple[str, ...]) -> ReplicaRow:
    if generation is None:  # reserved for it, not entered yet
        return ReplicaRow(number, devices)
    query = select(AttemptEntry).where(
        AttemptEntry.gang_key == generation.gang_key,
        AttemptEntry.replica == number,
        AttemptEntry.generation == generation.generation,
    )
    last = session.scalars(query.order_by(AttemptEntry.attempt.desc()).limit(1)).one_or_none()
    if last is None:
        return ReplicaRow(number, devices, generation.generation)
    return ReplicaRow(
        replica=number,
        generation=generation.generation,
        state=last.state,
        attempts=last.attempt,
        pid=last.pid,
        step=last.step,
        cause=last.cause,
        message=last.message,
        devices=devices,
        started=last.started_at,
        ended=last.ended_at,
    )
