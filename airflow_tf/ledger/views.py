"""Views and the generations they open, within the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from airflow_tf.core.errors import LedgerError
from airflow_tf.core.identity import GangKey, View
from airflow_tf.core.ledger import Orders, ReplicaRecord
from airflow_tf.core.states import AttemptState
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.replicas import attempts_of, outcome_of
from airflow_tf.ledger.schema import AttemptEntry, GangEntry, GenerationEntry, MemberEntry, ViewEntry


def enter(
    session: Session, clock: Clock, key: GangKey, replica: int, view: View, *, together: bool, spec: str
) -> ReplicaRecord:
    """Register the view; open a generation if it is the first one, or if a user cleared the task.

    Airflow raises the number of tries, which ``first_try`` is made of, on only one of the ways on which a running task
    that was cleared may end. The outcome of the replica tells it on the others.
    """
    gang = _checked_gang(session, key, replica)
    current = _current(session, key.key, replica)
    newest = _newest_generation(session, key.key) if together else current
    if current is not None and _is_cleared(session, current, view, together=together):
        gang.cancelled_by = gang.cancelled_at = None  # cleared: the new generation is not what was cancelled
        number, opened = (newest or current).generation + 1, range(gang.count or 0) if together else [replica]
        current = _open(session, clock, gang, opened, number)[replica]
    elif current is None:
        others = range(gang.count or 0) if together and newest is None else [replica]
        current = _open(session, clock, gang, others, newest.generation if newest is not None else 1)[replica]
    if not current.is_entered:  # a new one, or one that a sibling has opened
        current.spec, current.is_entered = spec, True
        current.first_try = max(current.first_try, view.first_try)
    _register(session, clock, current, view)
    session.flush()
    return record(session, clock, current)


def _is_cleared(session: Session, current: GenerationEntry, view: View, *, together: bool) -> bool:
    """Tell whether a user cleared the task since the generation began, and no sibling has opened the next one."""
    if view.first_try > current.first_try and (current.is_entered or not together):
        return True
    attempts = attempts_of(session, current.gang_key, current.replica, current.generation)
    outcome = outcome_of(attempts[-1]) if attempts else None
    return outcome is not None and outcome.is_cleared


def _checked_gang(session: Session, key: GangKey, replica: int) -> GangEntry:
    gang = session.get(GangEntry, key.key)
    if gang is None or gang.count is None:
        raise LedgerError(f"{key.label} was not opened in this ledger", todo="Call open_gang before enter.")
    if not 0 <= replica < gang.count:
        raise LedgerError(
            f"{key.label} has no replica {replica}",
            f"it has {gang.count}, numbered from 0",
            "Map the task over the numbers of its replicas, and give their count.",
        )
    return gang


def _open(
    session: Session, clock: Clock, gang: GangEntry, replicas: Sequence[int], number: int
) -> dict[int, GenerationEntry]:
    """Open generation ``number`` of the replicas: what was asked of the earlier one is over."""
    opened = {}
    for replica in replicas:
        earlier = _current(session, gang.key, replica)
        opened[replica] = GenerationEntry(
            gang_key=gang.key,
            replica=replica,
            generation=number,
            first_try=earlier.first_try if earlier is not None else 0,
            opened_at=clock.wall_text(),
            spec="",
            is_entered=False,
        )
    session.add_all(opened.values())
    session.execute(
        update(ViewEntry)
        .where(ViewEntry.gang_key == gang.key, ViewEntry.replica.in_(replicas))
        .values(stop_reason=None, log_attempt=0, log_bytes=0)
    )
    session.flush()
    return opened


def _register(session: Session, clock: Clock, current: GenerationEntry, view: View) -> None:
    """Keep ``view`` if it is the newest; one that comes back, after a reschedule, keeps the time it first came."""
    row = session.get(ViewEntry, (current.gang_key, current.replica))
    newest = None if row is None else _as_view(row)
    if not view.is_newer_than(newest):
        return
    if row is None:
        row = ViewEntry(gang_key=current.gang_key, replica=current.replica, log_attempt=0, log_bytes=0)
    attempts = attempts_of(session, current.gang_key, current.replica, current.generation)
    is_running = bool(attempts) and not AttemptState(attempts[-1].state).is_terminal
    if not is_running and not (attempts and view == newest):
        row.watched_epoch, row.watched_seconds = clock.epoch, clock.now()
    if view != newest:
        row.ti_id, row.try_number, row.first_try = view.ti_id, view.try_number, view.first_try
        row.epoch, row.entered_seconds, row.stop_reason = clock.epoch, clock.now(), None
    _sign(clock, row)
    session.add(row)


def _sign(clock: Clock, row: ViewEntry) -> None:
    row.signed_epoch, row.signed_seconds, row.seen_at = clock.epoch, clock.now(), clock.wall_text()


def renew(
    session: Session, clock: Clock, key: GangKey, replica: int, view: View, log_position: tuple[int, int] | None
) -> bool:
    """Record a sign of life of the newest view, and how far it has shown the output."""
    row = session.get(ViewEntry, (key.key, replica))
    if row is None or _as_view(row) != view:
        return False
    _sign(clock, row)
    if log_position is not None:
        row.log_attempt, row.log_bytes = log_position
    return True


def ask_stop(session: Session, key: GangKey, replica: int, view: View, reason: str) -> bool:
    """Keep for the supervisor why the newest view wants its replica to stop."""
    row = session.get(ViewEntry, (key.key, replica))
    if row is None or _as_view(row) != view:
        return False
    row.stop_reason = reason
    return True


def orders(session: Session, clock: Clock, gang: GangEntry, revoked: tuple[int, ...]) -> Orders:
    """Return what a gang's supervisor has to know."""
    rows = session.scalars(select(ViewEntry).where(ViewEntry.gang_key == gang.key).order_by(ViewEntry.replica)).all()
    return Orders(
        cancelled_by=gang.cancelled_by,
        stops={row.replica: row.stop_reason for row in rows if row.stop_reason is not None},
        revoked=revoked,
        unseen_seconds={row.replica: _since(clock, row.signed_epoch, row.signed_seconds) for row in rows},
    )


def _since(clock: Clock, epoch: str, seconds: float) -> float:
    """Return how long ago that was; of an earlier epoch it is only known that it was before this one."""
    return clock.now() - seconds if epoch == clock.epoch else clock.now()


def seconds_waiting(session: Session, clock: Clock, key: GangKey, replica: int, view: View) -> float:
    """Return how long ago the newest view was entered; within this boot."""
    row = session.get(ViewEntry, (key.key, replica))
    if row is None or _as_view(row) != view:
        raise LedgerError(
            f"try {view.try_number} no longer owns replica {replica} of {key.label}",
            "a newer try has taken it over" if row is not None else "it was never entered",
        )
    return _since(clock, row.epoch, row.entered_seconds)


def newest_view(session: Session, key: GangKey, replica: int) -> View | None:
    """Return the newest view of a replica that was registered."""
    row = session.get(ViewEntry, (key.key, replica))
    return None if row is None else _as_view(row)


def _as_view(row: ViewEntry) -> View:
    return View(row.ti_id, row.try_number, row.first_try)


def replicas(session: Session, clock: Clock, gang_key: str) -> dict[int, ReplicaRecord]:
    """Return the current generation of every replica that was entered, or started with a sibling."""
    numbers = session.scalars(select(GenerationEntry.replica).where(GenerationEntry.gang_key == gang_key).distinct())
    found = {number: _current(session, gang_key, number) for number in sorted(numbers)}
    records = {number: record(session, clock, current) for number, current in found.items() if current is not None}
    return {number: found for number, found in records.items() if found.first_try or found.attempts}


def _current(session: Session, gang_key: str, replica: int) -> GenerationEntry | None:
    query = select(GenerationEntry).where(GenerationEntry.gang_key == gang_key, GenerationEntry.replica == replica)
    return session.scalars(query.order_by(GenerationEntry.generation.desc()).limit(1)).one_or_none()


def _newest_generation(session: Session, gang_key: str) -> GenerationEntry | None:
    query = select(GenerationEntry).where(GenerationEntry.gang_key == gang_key)
    return session.scalars(query.order_by(GenerationEntry.generation.desc()).limit(1)).one_or_none()


def record(session: Session, clock: Clock, current: GenerationEntry) -> ReplicaRecord:
    """Return a generation as its users see it."""
    attempts = attempts_of(session, current.gang_key, current.replica, current.generation)
    last: AttemptEntry | None = attempts[-1] if attempts else None
    view = session.get(ViewEntry, (current.gang_key, current.replica))
    return ReplicaRecord(
        current.generation,
        current.first_try,
        len(attempts),
        None if last is None else outcome_of(last),
        fence=0 if last is None else session.get_one(MemberEntry, last.member_id).reservation_id,
        cancelled_by=session.get_one(GangEntry, current.gang_key).cancelled_by,
        spec=current.spec,
        watched_seconds=0.0 if view is None else _since(clock, view.watched_epoch, view.watched_seconds),
        log_position=(0, 0) if view is None else (view.log_attempt, view.log_bytes),
    )
