"""What the command line and the pages show of a ledger: plain rows, read only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import ColumnElement, and_, exists, or_, select
from sqlalchemy.orm import Session, aliased

from airflow_tf.core.devices import Device, Health, Host, Reading
from airflow_tf.core.ledger import Refused
from airflow_tf.core.states import MemberState
from airflow_tf.ledger import holdings, hosts, waiting
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.hosts import Look
from airflow_tf.ledger.reservations import Ask, outlook
from airflow_tf.ledger.rows import (
    WAITING,
    AttemptRow,
    DeviceRow,
    HostRow,
    QueueRow,
    ReplicaRow,
    ReservationRow,
    RunRow,
)
from airflow_tf.ledger.schema import (
    LIVE,
    AttemptEntry,
    DeviceEntry,
    GangEntry,
    GenerationEntry,
    HostEntry,
    LookEntry,
    MemberEntry,
    WaiterEntry,
)
from airflow_tf.ledger.store import Ledger

__all__ = [
    "WAITING",
    "AttemptRow",
    "DeviceRow",
    "HostRow",
    "LedgerReader",
    "QueueRow",
    "ReplicaRow",
    "ReservationRow",
    "RunRow",
]


class LedgerReader:
    """Read a ledger; every method is one consistent look."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def hosts(self) -> list[HostRow]:
        """Return every place of every registered host."""
        return self._ledger.read(lambda session, _: _hosts(session))

    def devices(self) -> list[DeviceRow]:
        """Return every device that its host has, or has lost since it was started, by host, kind and index."""
        return self._ledger.read(_devices)

    def runs(
        self,
        dag_id: str | None = None,
        *,
        run_id: str | None = None,
        name: str | None = None,
        state: str | None = None,
        limit: int | None = None,
    ) -> list[RunRow]:
        """Return gangs, newest first.

        :param dag_id: only those of this DAG.
        :param run_id: only those of this run.
        :param name: only those of this run id, or whose key begins so.
        :param state: only those of which a replica is in this state.
        :param limit: at most so many.
        """
        conditions = [
            *([GangEntry.dag_id == dag_id] if dag_id is not None else []),
            *([GangEntry.run_id == run_id] if run_id is not None else []),
            *([or_(GangEntry.run_id == name, GangEntry.key.startswith(name, autoescape=True))] if name else []),
            *([_has_replica_in(state)] if state is not None else []),
        ]
        return self._ledger.read(lambda session, clock: _runs(session, clock, conditions, limit))

    def attempts(self, gang_key: str) -> list[AttemptRow]:
        """Return all attempts of a gang's replicas, by replica, the first one first."""
        return self._ledger.read(lambda session, _: _attempts(session, gang_key))

    def reservations(self) -> list[ReservationRow]:
        """Return who holds devices now, newest first."""
        return self._ledger.read(_reservations)

    def queue(self) -> list[QueueRow]:
        """Return who waits for devices, by host and position."""
        return self._ledger.read(_queue)

    def outlook(self, ask: Ask, host: Host, readings: Sequence[Reading]) -> list[tuple[Device, ...]] | Refused:
        """Return the devices that each replica of a gang would get now, or why it would wait; nothing is reserved.

        :raises DevicesNeverFitError: if the host can never satisfy the request.
        """
        return self._ledger.read(lambda session, clock: outlook(session, clock, ask, Look.of(host, readings)))


def _hosts(session: Session) -> list[HostRow]:
    present = Counter(session.scalars(select(DeviceEntry.host_id).where(DeviceEntry.is_present)))
    return [
        HostRow(
            host_id=row.host_id,
            machine=row.machine,
            name=row.name,
            boot_id=row.boot_id,
            seen=row.seen_at,
            devices=present[row.host_id],
            drained=row.drained_why or "",
        )
        for row in session.scalars(select(HostEntry).order_by(HostEntry.name, HostEntry.host_id))
    ]


def _devices(session: Session, clock: Clock) -> list[DeviceRow]:
    looked = and_(LookEntry.host_id == DeviceEntry.host_id, LookEntry.kind == DeviceEntry.kind)
    query = (
        select(DeviceEntry, HostEntry.name, LookEntry.seen_at)
        .join(HostEntry, HostEntry.host_id == DeviceEntry.host_id)
        .join(LookEntry, looked, isouter=True)
        .where(or_(DeviceEntry.is_present, and_(hosts.is_lost(), DeviceEntry.boot_id == HostEntry.boot_id)))
        .order_by(HostEntry.name, DeviceEntry.host_id, DeviceEntry.kind, DeviceEntry.index)
    )
    found = session.execute(query).all()
    host_ids = {row.host_id for row, _, _ in found}
    held = {host_id: holdings.on_host(session, clock, host_id) for host_id in host_ids}
    barred = {host_id: hosts.bars(session, clock, host_id) for host_id in host_ids}
    return [
        DeviceRow(
            host=host,
            host_id=row.host_id,
            uuid=row.uuid,
            kind=row.kind,
            name=row.name,
            index=row.index,
            memory_bytes=row.memory_bytes,
            health=row.health if row.is_present else Health.UNHEALTHY.value,
            reason=row.reason if row.is_present else hosts.LOST,
            seen=seen or "",
            holders=tuple(each.holder for each in held[row.host_id].get(row.uuid, ())),
            barred=barred[row.host_id].get(row.uuid, (0.0, ""))[1],
        )
        for row, host, seen in found
    ]


def _runs(session: Session, clock: Clock, conditions: Sequence[ColumnElement[bool]], limit: int | None) -> list[RunRow]:
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


def _attempts(session: Session, gang_key: str) -> list[AttemptRow]:
    query = select(AttemptEntry).where(AttemptEntry.gang_key == gang_key)
    order = (AttemptEntry.replica, AttemptEntry.generation, AttemptEntry.attempt)
    return [
        AttemptRow(
            replica=row.replica,
            generation=row.generation,
            attempt=row.attempt,
            state=row.state,
            step=row.step,
            cause=row.cause,
            message=row.message,
            exit_code=row.exit_code,
            started=row.started_at,
            updated=row.updated_at,
            ended=row.ended_at,
            checkpoint=row.checkpoint,
        )
        for row in session.scalars(query.order_by(*order))
    ]


def _reservations(session: Session, clock: Clock) -> list[ReservationRow]:
    query = (
        select(MemberEntry, GangEntry, HostEntry.name)
        .join(GangEntry, GangEntry.key == MemberEntry.gang_key)
        .join(HostEntry, HostEntry.host_id == MemberEntry.host_id)
        .where(MemberEntry.state.in_(LIVE))
        .order_by(MemberEntry.reservation_id.desc(), MemberEntry.replica)
    )
    found = [each for each in session.execute(query) if not holdings.is_due(each[0], clock)]
    members = holdings.as_members(session, [row for row, _, _ in found])
    return [
        ReservationRow(
            reservation_id=row.reservation_id,
            gang_key=gang.key,
            dag_id=gang.dag_id,
            run_id=gang.run_id,
            task_id=gang.task_id,
            gang_label=gang.label,
            replica=row.replica,
            state=row.state,
            host=host,
            host_id=row.host_id,
            devices=tuple(device.uuid for device in member.devices),
            share_percent=row.share_percent,
            since=row.created_at,
            supervisor_pid=row.supervisor_pid,
            expires_in_seconds=_time_left(row, clock),
            is_suspect=bool(holdings.suspect_since(clock, row)),
        )
        for (row, gang, host), member in zip(found, members, strict=True)
    ]


def _time_left(member: MemberEntry, clock: Clock) -> float | None:
    is_confirmed = member.state == MemberState.CONFIRMED.value
    return None if is_confirmed else round(member.expires_seconds - clock.now(), 1)


def _queue(session: Session, clock: Clock) -> list[QueueRow]:
    names = select(HostEntry.host_id, HostEntry.name).where(HostEntry.host_id.in_(select(WaiterEntry.host_id)))
    found = []
    for host_id, host in session.execute(names.order_by(HostEntry.name)):
        for position, row in enumerate(waiting.alive_on(session, clock, host_id), 1):
            gang = session.get_one(GangEntry, row.gang_key)
            missing = waiting.waiters(session, clock, [row])
            found.append(
                QueueRow(
                    position=position,
                    host=host,
                    gang_key=gang.key,
                    dag_id=gang.dag_id,
                    run_id=gang.run_id,
                    task_id=gang.task_id,
                    gang_label=gang.label,
                    replicas=tuple(row.replicas),
                    wanted=sum(each.wanted for each in missing),
                    priority=row.priority,
                    waited_seconds=round(clock.now() - row.arrived_seconds, 1),
                    time_limit_seconds=row.time_limit_seconds,
                    reason=row.refused,
                )
            )
    return found


def _replicas(session: Session, clock: Clock, gang_key: str) -> tuple[ReplicaRow, ...]:
    query = select(GenerationEntry).where(GenerationEntry.gang_key == gang_key).order_by(GenerationEntry.generation)
    current = {row.replica: row for row in session.scalars(query)}
    live = [row for row in holdings.live_members_of(session, gang_key) if not holdings.is_due(row, clock)]
    held = {
        member.replica: tuple(device.uuid for device in member.devices) for member in holdings.as_members(session, live)
    }
    return tuple(
        _replica(session, current.get(number), number, held.get(number, ())) for number in sorted({*current, *held})
    )


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
