"""The queue: gangs that were refused and look again, within the caller's transaction."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.ledger import Turn
from airflow_tf.core.queue import Waiter
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.holdings import live_members_of
from airflow_tf.ledger.schema import GangEntry, ReservationEntry, WaiterEntry

LOOKS_MISSED = 3
"""A waiter that has missed so many looks is forgotten."""


def is_alive(row: WaiterEntry, clock: Clock) -> bool:
    """Tell whether the waiter still looks."""
    return row.epoch == clock.epoch and clock.now() - row.looked_seconds <= LOOKS_MISSED * row.look_seconds


def alive_on(session: Session, clock: Clock, host_id: str) -> list[WaiterEntry]:
    """Return who waits for devices of a host, the first one first."""
    rows = session.scalars(select(WaiterEntry).where(WaiterEntry.host_id == host_id))
    return sorted((row for row in rows if is_alive(row, clock)), key=_place)


def forget(session: Session, clock: Clock) -> None:
    """Take out of the queue who does not look any more."""
    for row in session.scalars(select(WaiterEntry)):
        if not is_alive(row, clock):
            session.delete(row)
    session.flush()


def _place(row: WaiterEntry) -> tuple[float, float, float]:
    return -row.priority, row.arrived_seconds, row.id


def ahead_of(
    rows: Sequence[WaiterEntry], gang_key: str, replicas: Sequence[int], turn: Turn, arrived_seconds: float
) -> list[WaiterEntry]:
    """Return who comes before the gang; what waits for the same replicas is the gang itself."""
    own = own_row(rows, gang_key, replicas)
    place = (-turn.priority, arrived_seconds, own.id if own is not None else math.inf)
    return [
        row
        for row in rows
        if _place(row) < place and not (row.gang_key == gang_key and not set(row.replicas).isdisjoint(replicas))
    ]


def own_row(rows: Sequence[WaiterEntry], gang_key: str, replicas: Sequence[int]) -> WaiterEntry | None:
    """Return the row in which the gang waits for just these replicas."""
    return next((row for row in rows if row.gang_key == gang_key and row.replicas == sorted(replicas)), None)


def arrival(session: Session, clock: Clock, own: WaiterEntry | None, gang_key: str) -> float:
    """Return when the gang first asked: now, unless it waits, or was granted devices that could not be used."""
    if own is not None:
        return own.arrived_seconds
    query = select(ReservationEntry).where(ReservationEntry.gang_key == gang_key)
    last = session.scalars(query.order_by(ReservationEntry.id.desc()).limit(1)).one_or_none()
    is_void = last is not None and last.is_void and last.epoch == clock.epoch
    return last.arrived_seconds if last is not None and is_void else clock.now()


def wait(
    session: Session,
    clock: Clock,
    own: WaiterEntry | None,
    place: tuple[str, str, Sequence[int], float],
    request: DeviceRequest,
    turn: Turn,
    refused: str,
) -> None:
    """Put a refused gang into the queue, or renew its place.

    :param place: gang, host, replicas and time of arrival.
    """
    gang_key, host_id, replicas, arrived_seconds = place
    if own is None:
        own = WaiterEntry(
            gang_key=gang_key, host_id=host_id, replicas=sorted(replicas), arrived_seconds=arrived_seconds
        )
        session.add(own)
    own.request, own.priority, own.time_limit_seconds = request.to_json(), turn.priority, turn.time_limit_seconds
    own.look_seconds, own.epoch, own.looked_seconds = turn.look_seconds, clock.epoch, clock.now()
    own.refused = refused
    session.flush()


def served(session: Session, gang_key: str, replicas: Sequence[int]) -> None:
    """Take out of the queue what waits for no other replicas than these."""
    for row in session.scalars(select(WaiterEntry).where(WaiterEntry.gang_key == gang_key)):
        if set(row.replicas) <= set(replicas):
            session.delete(row)


def leave(session: Session, gang_key: str) -> None:
    """Take all of the gang out of the queue."""
    session.execute(delete(WaiterEntry).where(WaiterEntry.gang_key == gang_key))


def waiters(session: Session, clock: Clock, rows: Sequence[WaiterEntry]) -> list[Waiter]:
    """Return rows of the queue as those see them who come after them; without who has got its devices meanwhile."""
    found = []
    for row in rows:
        held = {member.replica for member in live_members_of(session, row.gang_key)}
        missing = [replica for replica in row.replicas if replica not in held]
        if missing:
            label = session.get_one(GangEntry, row.gang_key).label
            request = DeviceRequest.from_json(row.request)
            waited_seconds = clock.now() - row.arrived_seconds
            found.append(Waiter(label, request, len(missing), waited_seconds, row.time_limit_seconds))
    return found
