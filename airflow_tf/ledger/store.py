"""The ledger as its users see it: every method is one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from airflow_tf.core.devices import DeviceRequest, Host, Member, Reading
from airflow_tf.core.errors import LedgerError
from airflow_tf.core.identity import GangKey, View
from airflow_tf.core.ledger import ConfirmedMember, Granted, Orders, Outcome, Refused, ReplicaRecord
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import MemberState
from airflow_tf.ledger import replicas as replica_rows
from airflow_tf.ledger import reservations
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.engine import DEADLINE_SECONDS, Transactions
from airflow_tf.ledger.location import open_database
from airflow_tf.ledger.migrate import migrate
from airflow_tf.ledger.schema import AttemptEntry, GangEntry, MemberEntry, MetaEntry

T = TypeVar("T")


class Ledger:
    """Implements :class:`airflow_tf.core.ledger.GangLedger`; made by :func:`open_ledger`."""

    def __init__(self, transactions: Transactions, *, reservation_seconds: float) -> None:
        self._transactions = transactions
        self._life_seconds = reservation_seconds
        self.ledger_id = self.read(lambda session, _: session.get_one(MetaEntry, "ledger_id").value)

    def close(self) -> None:
        """Close the database."""
        self._transactions.close()

    def read(self, query: Callable[[Session, Clock], T]) -> T:
        """Run ``query`` on one consistent state and the ledger's clock, for readers of the tables."""
        return self._transactions.read(query)

    # --- hosts, devices, reservations --------------------------------------------------------------------------

    def register_host(self, host: Host, readings: Sequence[Reading]) -> None:
        """Record this host, its boot and its devices; members of an earlier boot of it are released."""
        self._transactions.write(lambda session, clock: reservations.record_host(session, clock, host, readings))

    def reserve(
        self, key: GangKey, request: DeviceRequest, replicas: Sequence[int], host: Host, readings: Sequence[Reading]
    ) -> Granted | Refused:
        """Reserve devices for all of ``replicas`` in one transaction, or none.

        Replicas that already have a live member keep it; its expiry is postponed.

        :raises DevicesNeverFitError: if the host can never satisfy the request.
        """
        return self._transactions.write(
            lambda session, clock: reservations.reserve(
                session,
                clock,
                life_seconds=self._life_seconds,
                key=key,
                request=request,
                replicas=replicas,
                host=host,
                readings=readings,
            )
        )

    def member(self, key: GangKey, replica: int) -> Member | None:
        """Return the live (reserved or confirmed) member of a replica, newest fence first."""

        def query(session: Session, clock: Clock) -> Member | None:
            now = clock.now()
            for row in reservations.live_members_of(session, key.key):
                if row.replica == replica and not reservations.is_due(row, clock.epoch, now):
                    return reservations.as_member(session, row)
            return None

        return self.read(query)

    def confirm(self, member: Member, supervisor_pid: int) -> None:
        """Turn a reserved member into a confirmed one; again by the same pid is no error.

        :raises LedgerError: if it is no longer reserved (expired, revoked, released).
        """
        self._transactions.write(lambda session, clock: reservations.confirm(session, clock, member, supervisor_pid))

    def confirmed_on(self, host: Host) -> list[ConfirmedMember]:
        """Return the confirmed members of a host with the token of their last attempt."""

        def query(session: Session, _: Clock) -> list[ConfirmedMember]:
            wanted = select(MemberEntry).where(
                MemberEntry.host_id == host.host_id, MemberEntry.state == MemberState.CONFIRMED.value
            )
            return [_confirmed(session, row) for row in session.scalars(wanted)]

        return self.read(query)

    def release(self, member: Member) -> None:
        """Give the member's devices back (idempotent)."""
        self._end(member, MemberState.RELEASED, "")

    def revoke(self, member: Member, why: str) -> None:
        """Take the devices of a member whose supervisor is gone and whose processes are swept.

        Its attempt, if it has not ended, is recorded as lost.
        """
        self._end(member, MemberState.REVOKED, why)

    def _end(self, member: Member, state: MemberState, why: str) -> None:
        def work(session: Session, clock: Clock) -> None:
            row = reservations.find_live(session, member)
            if row is not None:
                reservations.end_member(session, clock, row, state, why)

        self._transactions.write(work)

    def renew(self, key: GangKey, supervisor_pid: int) -> Orders:
        """Heartbeat of a gang's supervisor: postpone expiry of its reserved members; return what was asked of it."""

        def work(session: Session, clock: Clock) -> Orders:
            reservations.expire(session, clock)
            gang = session.get(GangEntry, key.key)
            if gang is None:
                return Orders()
            gang.supervisor_pid, gang.renewed_at = supervisor_pid, clock.wall_text()
            for member in reservations.live_members_of(session, key.key):
                member.expires_seconds = clock.now() + self._life_seconds
            return Orders(cancelled_by=gang.cancelled_by)

        return self._transactions.write(work)

    def cancel(self, gang_key: str, by: str) -> None:
        """Ask the gang's supervisor to stop it; take back at once what no supervisor has confirmed.

        Holds until a user clears one of the gang's tasks, which opens a new generation.

        :raises LedgerError: if there is no such gang.
        """

        def work(session: Session, clock: Clock) -> None:
            gang = session.get(GangEntry, gang_key)
            if gang is None:
                raise LedgerError(f"no gang {gang_key} in this ledger", todo="List them with 'airflow tf runs'.")
            gang.cancelled_by, gang.cancelled_at = by, clock.wall_text()
            for member in reservations.live_members_of(session, gang_key):
                if member.state == MemberState.RESERVED.value:
                    reservations.end_member(session, clock, member, MemberState.REVOKED, f"cancelled by {by}")

        self._transactions.write(work)

    # --- gangs, replicas, attempts -----------------------------------------------------------------------------

    def open_gang(self, key: GangKey, count: int, folder: str) -> None:
        """Record the gang (idempotent); ``folder`` is its run folder on this host."""
        self._transactions.write(lambda session, clock: replica_rows.open_gang(session, clock, key, count, folder))

    def enter(self, key: GangKey, replica: int, view: View) -> ReplicaRecord:
        """Register ``view`` and return the replica's current generation.

        A view whose ``first_try`` is greater than the recorded one was cleared by a user: it opens a new generation.

        :raises LedgerError: if the gang was not opened or has no such replica.
        """
        return self._transactions.write(lambda session, clock: replica_rows.enter(session, clock, key, replica, view))

    def is_newest_view(self, key: GangKey, replica: int, view: View) -> bool:
        """Tell whether no newer view of this replica has been registered."""
        newest = self.read(lambda session, _: replica_rows.newest_view(session, key, replica))
        return newest is None or not newest.is_newer_than(view) or newest == view

    def seconds_waiting(self, key: GangKey, replica: int, view: View) -> float:
        """Return how long ago ``view`` was entered for the first time; a reschedule does not start it again.

        :raises LedgerError: if a newer view has taken the replica over.
        """
        return self.read(lambda session, clock: replica_rows.seconds_waiting(session, clock, key, replica, view))

    def start_attempt(self, key: GangKey, replica: int, generation: int, member: Member, token: str) -> int:
        """Record a new attempt in state STARTING and return its number, counted from 1 in its generation.

        :raises LedgerError: if the member is no longer live, or the token was used before.
        """

        def work(session: Session, clock: Clock) -> int:
            row = reservations.find_live(session, member)
            if row is None:
                raise LedgerError(
                    f"replica {replica} of {key.label} cannot start",
                    f"reservation {member.reservation_id} no longer holds its devices",
                    "Run the task again: it reserves anew.",
                )
            return replica_rows.start_attempt(session, clock, key, replica, generation, row.id, token)

        return self._transactions.write(work)

    def update_attempt(
        self, key: GangKey, replica: int, generation: int, attempt: int, *, pid: int, step: int | None = None
    ) -> None:
        """Record that the attempt runs as ``pid`` and has reached ``step``."""
        where = (key.key, replica, generation, attempt)
        self._transactions.write(lambda session, clock: replica_rows.update_attempt(session, clock, where, pid, step))

    def end_attempt(self, key: GangKey, replica: int, generation: int, attempt: int, outcome: Outcome) -> None:
        """Record the outcome (idempotent; the first terminal outcome stays)."""
        where = (key.key, replica, generation, attempt)
        self._transactions.write(lambda session, clock: replica_rows.end_attempt(session, clock, where, outcome))

    def replicas(self, key: GangKey) -> dict[int, ReplicaRecord]:
        """Return the current generation of every replica that was ever entered."""
        return self.read(lambda session, _: replica_rows.replicas(session, key.key))


def open_ledger(
    settings: Settings, *, clock: Clock | None = None, deadline_seconds: float = DEADLINE_SECONDS
) -> Ledger:
    """Open the ledger, made or migrated first where needed.

    :param clock: another clock than the database's own, for tests.
    :param deadline_seconds: longest time that any call waits for the database; a call ends within twice that.
    :raises LedgerError: if its URL, its file system or its schema cannot be used.
    :raises LedgerUnavailableError: if the database does not answer.
    """
    database = open_database(settings.ledger_url, deadline_seconds)
    transactions = Transactions(database, deadline_seconds=deadline_seconds, clock=clock)
    migrate(transactions)
    return Ledger(transactions, reservation_seconds=settings.reservation_seconds)


def _confirmed(session: Session, row: MemberEntry) -> ConfirmedMember:
    tokens = select(AttemptEntry.token).where(AttemptEntry.member_id == row.id)
    newest = tokens.order_by(AttemptEntry.generation.desc(), AttemptEntry.attempt.desc()).limit(1)
    return ConfirmedMember(
        member=reservations.as_member(session, row),
        gang_label=f"{session.get_one(GangEntry, row.gang_key).label}[{row.replica}]",
        supervisor_pid=row.supervisor_pid or 0,
        confirmed_seconds=row.confirmed_seconds or 0.0,
        token=session.scalar(newest),
    )
