"""The ledger as its users see it: every method is one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import and_
from sqlalchemy.orm import Session

from airflow_tf.core.devices import DeviceRequest, Host, Member, Reading
from airflow_tf.core.errors import LedgerError
from airflow_tf.core.identity import GangKey, View
from airflow_tf.core.ledger import (
    ConfirmedMember,
    Granted,
    Orders,
    Outcome,
    Refused,
    ReplicaRecord,
    Turn,
    Waiting,
)
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import MemberState
from airflow_tf.ledger import holdings, hosts, reservations, retention, views, waiting
from airflow_tf.ledger import replicas as replica_rows
from airflow_tf.ledger.clock import Clock
from airflow_tf.ledger.engine import DEADLINE_SECONDS, Transaction, Transactions
from airflow_tf.ledger.hosts import Look
from airflow_tf.ledger.location import open_database
from airflow_tf.ledger.migrate import migrate
from airflow_tf.ledger.reservations import Ask
from airflow_tf.ledger.retention import Pruned
from airflow_tf.ledger.schema import GangEntry, MemberEntry, MetaEntry

BAR_SECONDS = 60.0
T = TypeVar("T")


class Ledger:
    """Implements :class:`airflow_tf.core.ledger.GangLedger`; made by :func:`open_ledger`."""

    def __init__(self, transactions: Transactions, *, reservation_seconds: float) -> None:
        self._transactions = transactions
        self._life_seconds = reservation_seconds
        self._last_look: tuple[Sequence[Reading] | None, Look | None] = (None, None)
        self.ledger_id = self.read(lambda session, _: session.get_one(MetaEntry, "ledger_id").value)

    def close(self) -> None:
        """Close the database."""
        self._transactions.close()

    def read(self, query: Callable[[Session, Clock], T]) -> T:
        """Run ``query`` on one consistent state and the ledger's clock, for readers of the tables."""
        return self._transactions.read(query)

    def _look_of(self, host: Host, readings: Sequence[Reading]) -> Look:
        """Digest a look once: what the host registers with is what a gang then reserves from."""
        given, last = self._last_look
        if last is None or given is not readings or last.host != host:
            last = Look.of(host, readings)
            self._last_look = (readings if isinstance(readings, tuple) else None, last)  # a list may change
        return last

    # --- hosts, devices, reservations --------------------------------------------------------------------------

    def register_host(self, host: Host, readings: Sequence[Reading]) -> None:
        """Record this host, its boot and its devices; members of an earlier boot of it are released."""
        look = self._look_of(host, readings)
        self._transactions.change(lambda work: reservations.record_host(work, look), is_passing=True)

    def reserve(
        self,
        key: GangKey,
        request: DeviceRequest,
        replicas: Sequence[int],
        host: Host,
        readings: Sequence[Reading],
        turn: Turn = Turn(),  # noqa: B008 (frozen)
    ) -> Granted | Refused:
        """Reserve devices for all of ``replicas`` in one transaction, or none.

        Replicas that already have a live member keep it; its expiry is postponed. A refused gang waits in the queue,
        and keeps only what a supervisor has confirmed.

        :raises DevicesNeverFitError: if the host can never satisfy the request; it names a registered one that can.
        """
        ask, look = Ask(key, request, tuple(dict.fromkeys(replicas)), turn), self._look_of(host, readings)
        return self._transactions.change(
            lambda work: reservations.reserve(work, self._life_seconds, ask, look),
            is_passing=self._transactions.database.is_of_one_host,  # a fence that somebody knows is never given again
        )

    def look(self, key: GangKey) -> Waiting | None:
        """Renew a waiting gang's place without probing; None if it does not wait (granted, or forgotten)."""
        return self._transactions.change(lambda work: reservations.renew_place(work, key))

    def withdraw(self, key: GangKey) -> None:
        """Leave the queue (idempotent)."""
        self._transactions.write(lambda session, _: waiting.leave(session, key.key))

    def bar(self, member: Member, uuids: Sequence[str], why: str, seconds: float = BAR_SECONDS) -> None:
        """Offer devices that their holder cannot use to nobody for some seconds.

        The member's gang has its place in the queue again when it is next refused.
        """
        self._transactions.write(lambda session, clock: reservations.bar(session, clock, member, uuids, why, seconds))

    def drain(self, host_id: str, by: str, why: str) -> None:
        """Offer nothing of a host until it is taken back, also over its boots.

        What a supervisor has confirmed there stays; what is only reserved is taken back, and its task reserves anew.
        That holds for all places of its machine: a container that is started again is another one.
        """
        self._transactions.write(lambda session, clock: reservations.drain(session, clock, host_id, by, why))

    def undrain(self, host_id: str) -> None:
        """Take a drained host back into use, with all places of its machine (idempotent)."""
        self._transactions.write(lambda session, _: hosts.undrain(session, host_id))

    def member(self, key: GangKey, replica: int) -> Member | None:
        """Return the live (reserved or confirmed) member of a replica, newest fence first."""

        def query(session: Session, clock: Clock) -> Member | None:
            for row in holdings.live_members_of(session, key.key):
                if row.replica == replica and not holdings.is_due(row, clock):
                    return holdings.as_member(session, row)
            return None

        return self.read(query)

    def confirm(self, member: Member, supervisor_pid: int, *siblings: Member) -> None:
        """Turn a reserved member, and others of its gang with it, into confirmed ones: all or none.

        Again by the same pid is no error.

        :raises LedgerError: if one is no longer reserved (expired, revoked, released).
        """
        members = (member, *siblings)
        change = self._transactions.change
        if not change(lambda work: holdings.confirm(work, members, supervisor_pid), is_passing=True):
            change(lambda work: holdings.confirm_again(work, members, supervisor_pid), is_passing=True)

    def confirmed_on(self, host: Host) -> list[ConfirmedMember]:
        """Return the confirmed members of a host with the token of their last attempt."""
        of_host = and_(MemberEntry.host_id == host.host_id, MemberEntry.state == MemberState.CONFIRMED.value)
        return self.read(
            lambda session, _: [holdings.as_confirmed(session, row) for row in holdings.live_members(session, of_host)]
        )

    def release(self, member: Member, *siblings: Member) -> None:
        """Give the member's devices back, and those of others of its gang with them (idempotent).

        Of a revoked one: its replica has ended.
        """
        self._transactions.change(lambda work: holdings.release(work, [member, *siblings]), is_passing=True)

    def revoke(self, member: Member, why: str) -> None:
        """Take the devices of a member whose supervisor is gone and whose processes are swept.

        Its attempt, if it has not ended, is recorded as lost.
        """

        def work(session: Session, clock: Clock) -> None:
            row = holdings.find_live(session, member)
            if row is not None:
                holdings.end_member(session, clock, row, MemberState.REVOKED, why)

        self._transactions.write(work)

    def release_by_hand(self, reservation_id: int, by: str) -> int:
        """Take a reservation away, whatever its state; return how many members it had. Their supervisor ends them.

        :raises LedgerError: if there is no such live reservation.
        """
        return self._transactions.write(
            lambda session, clock: reservations.revoke_by_hand(session, clock, reservation_id, by)
        )

    def renew(self, key: GangKey, supervisor_pid: int) -> Orders:
        """Heartbeat of a gang's supervisor: postpone expiry of its reserved members; return what was asked of it."""

        def heartbeat(work: Transaction) -> Orders:
            holdings.expire(work)
            session, clock = work.session, work.clock
            gang = session.get(GangEntry, key.key)
            if gang is None:
                return Orders()
            gang.supervisor_pid, gang.renewed_at = supervisor_pid, clock.wall_text()
            holdings.renew(session, clock, key.key, supervisor_pid, self._life_seconds)
            return views.orders(session, clock, gang, holdings.revoked_of(session, key.key, supervisor_pid))

        return self._transactions.change(heartbeat, is_passing=True)

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
            waiting.leave(session, gang_key)
            for member in holdings.live_members_of(session, gang_key):
                if member.state == MemberState.RESERVED.value:
                    holdings.end_member(session, clock, member, MemberState.REVOKED, f"cancelled by {by}")

        self._transactions.write(work)

    # --- gangs, replicas, attempts -----------------------------------------------------------------------------

    def open_gang(self, key: GangKey, count: int, folder: str) -> None:
        """Record the gang (idempotent); ``folder`` is its run folder on this host."""
        self._transactions.write(lambda session, clock: replica_rows.open_gang(session, clock, key, count, folder))

    def enter(self, key: GangKey, replica: int, view: View, *, together: bool = False, spec: str = "") -> ReplicaRecord:
        """Register ``view`` and return the replica's current generation.

        A view whose ``first_try`` is greater than the recorded one was cleared by a user: it opens a new generation,
        for this replica alone, or with ``together`` (gangs) for all: later cleared siblings join it.

        :raises LedgerError: if the gang was not opened or has no such replica.
        """
        return self._transactions.write(
            lambda session, clock: views.enter(session, clock, key, replica, view, together=together, spec=spec)
        )

    def renew_view(self, key: GangKey, replica: int, view: View, log_position: tuple[int, int] | None = None) -> bool:
        """Record a sign of life of a view, and how far it has shown the output; False if it was replaced."""
        return self._transactions.write(
            lambda session, clock: views.renew(session, clock, key, replica, view, log_position)
        )

    def ask_stop(self, key: GangKey, replica: int, view: View, reason: str) -> bool:
        """Ask the supervisor, by its next heartbeat, to stop the replica; False if the view is not the newest."""
        return self._transactions.write(lambda session, _: views.ask_stop(session, key, replica, view, reason))

    def is_newest_view(self, key: GangKey, replica: int, view: View) -> bool:
        """Tell whether no newer view of this replica has been registered."""
        newest = self.read(lambda session, _: views.newest_view(session, key, replica))
        return newest is None or not newest.is_newer_than(view) or newest == view

    def seconds_waiting(self, key: GangKey, replica: int, view: View) -> float:
        """Return how long ago ``view`` was entered for the first time; a reschedule does not start it again.

        :raises LedgerError: if a newer view has taken the replica over.
        """
        return self.read(lambda session, clock: views.seconds_waiting(session, clock, key, replica, view))

    def start_attempt(self, key: GangKey, replica: int, generation: int, member: Member, token: str) -> int:
        """Record a new attempt in state STARTING and return its number, counted from 1 in its generation.

        :raises LedgerError: if the member is no longer live, or the token was used before.
        """

        def work(session: Session, clock: Clock) -> int:
            row = holdings.find_live(session, member)
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
        return self.read(lambda session, clock: views.replicas(session, clock, key.key))

    # --- retention ---------------------------------------------------------------------------------------------

    def prune(self, older_than_seconds: float, *, dry_run: bool = False) -> list[Pruned]:
        """Remove all rows of gangs that have long ended; with ``dry_run`` only tell which.

        By wall time: no other clock goes on over the boots of a host.
        """

        def work(session: Session, clock: Clock) -> list[Pruned]:
            found = retention.ended_gangs(session, clock, older_than_seconds)
            retention.remove(session, [] if dry_run else [gang.key for gang in found])
            return found

        return self._transactions.write(work)


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
