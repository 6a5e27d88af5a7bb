"""Rows of gangs that have long ended, within the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy import delete, exists, func, not_, or_, select
from sqlalchemy.orm import Session

from airflow_tf.ledger import waiting
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.schema import (
    LIVE,
    RUNNING,
    AttemptEntry,
    GangEntry,
    GenerationEntry,
    MemberEntry,
    ReservationEntry,
    ViewEntry,
    WaiterEntry,
)

_CHILDREN_FIRST = (WaiterEntry, AttemptEntry, ViewEntry, GenerationEntry, MemberEntry, ReservationEntry)


@dataclass(frozen=True, slots=True)
class Pruned:
    """A gang whose rows were, or would be, removed; ``folder`` is its run folder on its host, if it had one."""

    key: str
    label: str
    dag_id: str
    run_id: str
    folder: str | None


def ended_gangs(session: Session, clock: Clock, older_than_seconds: float) -> list[Pruned]:
    """Return the gangs of which nothing lives and nothing has changed for so long, the oldest first."""
    waiting.forget(session, clock)
    ago = timedelta(seconds=older_than_seconds)
    limit = replace(clock, wall=lambda: clock.wall() - ago).wall_text()
    is_alive = or_(
        exists().where(
            MemberEntry.gang_key == GangEntry.key, MemberEntry.state.in_(LIVE) | (MemberEntry.changed_at >= limit)
        ),
        exists().where(
            AttemptEntry.gang_key == GangEntry.key,
            AttemptEntry.state.in_(RUNNING) | (AttemptEntry.updated_at >= limit),
        ),
        exists().where(ViewEntry.gang_key == GangEntry.key, ViewEntry.seen_at >= limit),
        exists().where(WaiterEntry.gang_key == GangEntry.key),
        func.coalesce(GangEntry.renewed_at, "") >= limit,
    )
    query = select(GangEntry).where(GangEntry.created_at < limit, not_(is_alive))
    return [
        Pruned(gang.key, gang.label, gang.dag_id, gang.run_id, gang.folder)
        for gang in session.scalars(query.order_by(GangEntry.created_at, GangEntry.key))
    ]


def remove(session: Session, gang_keys: Sequence[str]) -> None:
    """Remove all rows of gangs. Fences go on from where they were: their numbers are given out once."""
    for table in _CHILDREN_FIRST:
        session.execute(delete(table).where(table.gang_key.in_(gang_keys)))
    session.execute(delete(GangEntry).where(GangEntry.key.in_(gang_keys)))
