"""Gangs and the attempts of their replicas, within the caller's transaction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from airflow_tf.core.errors import LedgerError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.schema import RUNNING, AttemptEntry, GangEntry, GenerationEntry

_LOST = "its supervisor ended without recording an outcome"


def ensure_gang(session: Session, clock: Clock, key: GangKey) -> GangEntry:
    """Return the gang's row, made if it is new."""
    gang = session.get(GangEntry, key.key)
    if gang is None:
        gang = GangEntry(**new_gang(key), created_at=clock.wall_text())
        session.add(gang)
        session.flush()
    return gang


def new_gang(key: GangKey) -> dict[str, Any]:
    """Return the columns of a gang that is new, but for its time."""
    return {**key.to_json(), "key": key.key}


def open_gang(session: Session, clock: Clock, key: GangKey, count: int, folder: str) -> None:
    """Record how many replicas the gang has and where its files are; the last call holds."""
    gang = ensure_gang(session, clock, key)
    gang.count, gang.folder = count, folder


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
    of_replica = select(AttemptEntry).where(AttemptEntry.gang_key == key.key, AttemptEntry.replica == replica)
    for earlier in session.scalars(of_replica.where(AttemptEntry.state.in_(RUNNING))):
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


def _finite(value: Any) -> Any:  # noqa: ANN401 (any JSON)
    """Return metrics, with whatever lies within, as valid JSON, which knows no NaN and no infinity."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def attempts_of(session: Session, gang_key: str, replica: int, generation: int) -> list[AttemptEntry]:
    """Return the attempts of one generation of a replica, the first one first."""
    query = select(AttemptEntry).where(
        AttemptEntry.gang_key == gang_key, AttemptEntry.replica == replica, AttemptEntry.generation == generation
    )
    return list(session.scalars(query.order_by(AttemptEntry.attempt)))


def outcome_of(row: AttemptEntry) -> Outcome | None:
    """Return how an attempt ended; None while it runs."""
    state = AttemptState(row.state)
    if not state.is_terminal:
        return None
    return Outcome(state, ExitCause(row.cause), row.message, row.exit_code, row.checkpoint, dict(row.metrics))
