"""What became of each replica: gangs, views, generations and attempts, within the caller's transaction."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from airflow_tf.core.errors import LedgerError
from airflow_tf.core.identity import GangKey, View
from airflow_tf.core.ledger import Outcome, ReplicaRecord
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.schema import AttemptEntry, GangEntry, GenerationEntry, MemberEntry, ViewEntry

_LOST = "its supervisor ended without recording an outcome"


def ensure_gang(session: Session, clock: Clock, key: GangKey) -> GangEntry:
    """Return the gang's row, made if it is new."""
    gang = session.get(GangEntry, key.key)
    if gang is None:
        gang = GangEntry(
            key=key.key,
            installation=key.installation,
            dag_id=key.dag_id,
            run_id=key.run_id,
            task_id=key.task_id,
            group_index=key.group_index,
            created_at=clock.wall_text(),
        )
        session.add(gang)
        session.flush()
    return gang


def open_gang(session: Session, clock: Clock, key: GangKey, count: int, folder: str) -> None:
    """Record how many replicas the gang has and where its files are; the last call holds."""
    gang = ensure_gang(session, clock, key)
    gang.count, gang.folder = count, folder


def enter(session: Session, clock: Clock, key: GangKey, replica: int, view: View) -> ReplicaRecord:
    """Register the view; open the replica's first generation, or another one if a user cleared the task."""
    gang = session.get(GangEntry, key.key)
    if gang is None or gang.count is None:
        raise LedgerError(f"{key.label} was not opened in this ledger", todo="Call open_gang before enter.")
    if not 0 <= replica < gang.count:
        raise LedgerError(
            f"{key.label} has no replica {replica}",
            f"it has {gang.count}, numbered from 0",
            "Map the task over the numbers of its replicas, and give their count.",
        )
    _register(session, clock, key, replica, view)
    current = _current(session, key.key, replica)
    if current is None or view.first_try > current.first_try:
        if current is not None:  # cleared: the new generation is not what was cancelled
            gang.cancelled_by = gang.cancelled_at = None
        current = GenerationEntry(
            gang_key=key.key,
            replica=replica,
            generation=current.generation + 1 if current is not None else 1,
            first_try=view.first_try,
            opened_at=clock.wall_text(),
        )
        session.add(current)
    session.flush()
    return _record(session, current)


def _register(session: Session, clock: Clock, key: GangKey, replica: int, view: View) -> None:
    """Keep ``view`` if it is the newest; one that comes back, after a reschedule, keeps the time it first came."""
    row = session.get(ViewEntry, (key.key, replica))
    newest = None if row is None else _as_view(row)
    if not view.is_newer_than(newest):
        return
    if row is None:
        row = ViewEntry(gang_key=key.key, replica=replica)
        session.add(row)
    if view != newest:
        row.ti_id, row.try_number, row.first_try = view.ti_id, view.try_number, view.first_try
        row.epoch, row.entered_seconds = clock.epoch, clock.now()
    row.seen_at = clock.wall_text()


def seconds_waiting(session: Session, clock: Clock, key: GangKey, replica: int, view: View) -> float:
    """Return how long ago the newest view was entered; within this boot."""
    row = session.get(ViewEntry, (key.key, replica))
    if row is None or _as_view(row) != view:
        raise LedgerError(
            f"try {view.try_number} no longer owns replica {replica} of {key.label}",
            "a newer try has taken it over" if row is not None else "it was never entered",
        )
    return clock.now() - row.entered_seconds if row.epoch == clock.epoch else clock.now()


def newest_view(session: Session, key: GangKey, replica: int) -> View | None:
    """Return the newest view of a replica that was registered."""
    row = session.get(ViewEntry, (key.key, replica))
    return None if row is None else _as_view(row)


def _as_view(row: ViewEntry) -> View:
    return View(row.ti_id, row.try_number, row.first_try)


def replicas(session: Session, gang_key: str) -> dict[int, ReplicaRecord]:
    """Return the current generation of every replica that was entered."""
    numbers = session.scalars(select(GenerationEntry.replica).where(GenerationEntry.gang_key == gang_key).distinct())
    found = {number: _current(session, gang_key, number) for number in sorted(numbers)}
    return {number: _record(session, current) for number, current in found.items() if current is not None}


def start_attempt(
    session: Session, clock: Clock, key: GangKey, replica: int, generation: int, member_id: int, token: str
) -> int:
    """Record a new attempt; one of this replica that has not ended is lost."""
    same = session.scalars(select(AttemptEntry).where(AttemptEntry.token == token)).one_or_none()
    if same is not None:
        where = (same.gang_key, same.replica, same.generation, same.member_id, same.state)
        if where == (key.key, replica, generation, member_id, AttemptState.STARTING.value):
            return same.attempt  # the answer to an earlier call was lost
        raise LedgerError(
            f"fencing token {token} was used before", "two attempts would take each other's processes for their own"
        )
    if session.get(GenerationEntry, (key.key, replica, generation)) is None:
        raise LedgerError(f"{key.label} has no generation {generation} of replica {replica}")
    for earlier in _of_replica(session, key.key, replica):
        if not AttemptState(earlier.state).is_terminal:
            _end(clock, earlier, Outcome(AttemptState.LOST, ExitCause.INFRASTRUCTURE, _LOST))
    last = select(func.max(AttemptEntry.attempt)).where(
        AttemptEntry.gang_key == key.key, AttemptEntry.replica == replica, AttemptEntry.generation == generation
    )
    attempt = (session.scalar(last) or 0) + 1
    session.add(
        AttemptEntry(
            gang_key=key.key,
            replica=replica,
            generation=generation,
            attempt=attempt,
            member_id=member_id,
            token=token,
            state=AttemptState.STARTING.value,
            started_at=clock.wall_text(),
            updated_at=clock.wall_text(),
            cause=ExitCause.NONE.value,
            message="",
            metrics={},
        )
    )
    return attempt


def update_attempt(
    session: Session, clock: Clock, where: tuple[str, int, int, int], pid: int, step: int | None
) -> None:
    """Record that the attempt runs; one that has ended stays as it is."""
    row = _attempt(session, where)
    if AttemptState(row.state).is_terminal:
        return
    row.state, row.pid, row.updated_at = AttemptState.RUNNING.value, pid, clock.wall_text()
    if step is not None:
        row.step = step


def end_attempt(session: Session, clock: Clock, where: tuple[str, int, int, int], outcome: Outcome) -> None:
    """Record the outcome of an attempt that has none yet."""
    if not outcome.state.is_terminal:
        raise LedgerError(f"an attempt cannot end as {outcome.state.value}", "that is no final state")
    row = _attempt(session, where)
    if not AttemptState(row.state).is_terminal:
        _end(clock, row, outcome)


def _attempt(session: Session, where: tuple[str, int, int, int]) -> AttemptEntry:
    row = session.get(AttemptEntry, where)
    if row is None:
        _, replica, generation, attempt = where
        raise LedgerError(f"no attempt {attempt} of replica {replica} in generation {generation} was started")
    return row


def _end(clock: Clock, row: AttemptEntry, outcome: Outcome) -> None:
    row.state, row.cause, row.message = outcome.state.value, outcome.cause.value, _storable(outcome.message)
    row.exit_code, row.checkpoint, row.metrics = outcome.exit_code, outcome.checkpoint, _finite(outcome.metrics)
    step = row.metrics.get("step")
    row.step = int(step) if isinstance(step, int | float) else row.step
    row.ended_at = row.updated_at = clock.wall_text()


def _storable(text: str) -> str:
    """Return a program's words as every database takes them: SQLite no lone surrogates, PostgreSQL no NUL either."""
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def _finite(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics as valid JSON, which knows no NaN and no infinity."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }


def _current(session: Session, gang_key: str, replica: int) -> GenerationEntry | None:
    query = select(GenerationEntry).where(GenerationEntry.gang_key == gang_key, GenerationEntry.replica == replica)
    return session.scalars(query.order_by(GenerationEntry.generation.desc()).limit(1)).one_or_none()


def _of_replica(session: Session, gang_key: str, replica: int) -> list[AttemptEntry]:
    query = select(AttemptEntry).where(AttemptEntry.gang_key == gang_key, AttemptEntry.replica == replica)
    return list(session.scalars(query.order_by(AttemptEntry.generation, AttemptEntry.attempt)))


def _record(session: Session, current: GenerationEntry) -> ReplicaRecord:
    rows = [
        row for row in _of_replica(session, current.gang_key, current.replica) if row.generation == current.generation
    ]
    cancelled_by = session.get_one(GangEntry, current.gang_key).cancelled_by
    if not rows:
        return ReplicaRecord(current.generation, current.first_try, 0, None, cancelled_by=cancelled_by)
    member = session.get_one(MemberEntry, rows[-1].member_id)
    return ReplicaRecord(
        current.generation,
        current.first_try,
        len(rows),
        outcome_of(rows[-1]),
        fence=member.reservation_id,
        cancelled_by=cancelled_by,
    )


def outcome_of(row: AttemptEntry) -> Outcome | None:
    """Return how an attempt ended; None while it runs."""
    state = AttemptState(row.state)
    if not state.is_terminal:
        return None
    return Outcome(state, ExitCause(row.cause), row.message, row.exit_code, row.checkpoint, dict(row.metrics))
