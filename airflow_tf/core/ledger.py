"""What supervisors, operators and sensors ask of the ledger (implemented by :mod:`airflow_tf.ledger`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from airflow_tf.core.devices import DeviceRequest, Host, Member, Reading
from airflow_tf.core.identity import GangKey, View
from airflow_tf.core.states import CLEARED_REASON, AttemptState, ExitCause


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, as durably recorded.

    ``checkpoint`` is the prefix of the last complete checkpoint, ``metrics`` the last reported values.
    """

    state: AttemptState
    cause: ExitCause = ExitCause.NONE
    message: str = ""
    exit_code: int | None = None
    checkpoint: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def is_cleared(self) -> bool:
        """Tell whether the replica was stopped because a user cleared its task: the next try begins anew."""
        return self.cause is ExitCause.MARKED and self.message.startswith(CLEARED_REASON)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Outcome:
        """Read what :meth:`to_json` gave."""
        return cls(**(data | {"state": AttemptState(data["state"]), "cause": ExitCause(data["cause"])}))


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """The current generation of one replica: how often it was started and how its last attempt ended.

    ``fence`` is that of the last attempt, 0 before the first. ``cancelled_by`` is set while the gang is cancelled:
    nothing of it starts until a user clears a task of it. ``spec`` is the digest of what the generation began with.
    ``watched_seconds`` is how long ago the first view entered of those that have watched the present attempts without
    a break: an execution timeout counts from there, however often a view was replaced. ``log_position`` is (attempt,
    bytes of its output) up to which views have shown the output.
    """

    generation: int
    first_try: int
    attempts: int
    outcome: Outcome | None
    fence: int = 0
    cancelled_by: str | None = None
    spec: str = ""
    watched_seconds: float = 0.0
    log_position: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds how much of a device, since when (wall time, for display).

    ``state`` is ``reserved``, ``confirmed``, or ``suspect`` while the supervisor of a confirmed one is silent.
    """

    device_uuid: str
    gang_label: str
    replica: int
    since: str
    state: str
    share_percent: int = 100


@dataclass(frozen=True, slots=True)
class Turn:
    """A gang's place in the queue: higher ``priority`` first, then earlier arrival.

    :param time_limit_seconds: longest time for which it will hold its devices, as declared; None is no promise.
    :param look_seconds: time between two looks; a waiter that misses three of them is forgotten.
    """

    priority: int = 0
    time_limit_seconds: float | None = None
    look_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the ledger knows of a gang in the queue, without a look at the devices themselves.

    :param waited_seconds: since its first refused :meth:`GangLedger.reserve`.
    :param is_promising: whether enough devices seem free for it and it is its turn, so that a real look is worth while.
    """

    waited_seconds: float
    is_promising: bool


@dataclass(frozen=True, slots=True)
class Orders:
    """What a supervisor learns from its heartbeat.

    :param cancelled_by: who cancelled the gang, None if nobody did.
    :param stops: replica -> why; asked by a view that has no connection (a trigger, a command).
    :param revoked: replicas whose reservation was taken away: they must end at once.
    :param unseen_seconds: replica -> how long ago its newest view last gave a sign in the ledger.
    """

    cancelled_by: str | None = None
    stops: dict[int, str] = field(default_factory=dict)
    revoked: tuple[int, ...] = ()
    unseen_seconds: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Granted:
    """A reservation was made: one member per replica."""

    reservation_id: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The request fits this host, but not now.

    ``reasons`` has one line per device that is not free, and one per gang that is before this one in the queue.
    """

    wanted: int
    free: int
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        """One line for a log."""
        return f"{self.free} of {self.wanted} devices free; " + "; ".join(self.reasons)


@dataclass(frozen=True, slots=True)
class ConfirmedMember:
    """A member that a supervisor holds: since when on the host's boot clock (seconds), its last attempt's token."""

    member: Member
    gang_label: str
    supervisor_pid: int
    confirmed_seconds: float
    token: str | None


class GangLedger(Protocol):
    """The ledger as seen by those who run gangs. All calls are one transaction each.

    Every call raises ``LedgerUnavailableError`` when the database does not answer within its deadline.
    """

    ledger_id: str

    def register_host(self, host: Host, readings: Sequence[Reading]) -> None:
        """Record this host, its boot and its devices; members of an earlier boot of it are released."""
        ...

    def open_gang(self, key: GangKey, count: int, folder: str) -> None:
        """Record the gang (idempotent); ``folder`` is its run folder on this host."""
        ...

    def enter(self, key: GangKey, replica: int, view: View, *, together: bool = False, spec: str = "") -> ReplicaRecord:
        """Register ``view`` and return the replica's current generation.

        A view whose ``first_try`` is greater than the recorded one was cleared by a user: it opens a new generation,
        for this replica alone, or with ``together`` (gangs) for all: later cleared siblings join it. ``spec`` is kept
        with a new generation.
        """
        ...

    def renew_view(self, key: GangKey, replica: int, view: View, log_position: tuple[int, int] | None = None) -> bool:
        """Record a sign of life of a view, and how far it has shown the output; False if it was replaced."""
        ...

    def ask_stop(self, key: GangKey, replica: int, view: View, reason: str) -> bool:
        """Ask the supervisor, by its next heartbeat, to stop the replica; False if the view is not the newest."""
        ...

    def is_newest_view(self, key: GangKey, replica: int, view: View) -> bool:
        """Tell whether no newer view of this replica has been registered."""
        ...

    def seconds_waiting(self, key: GangKey, replica: int, view: View) -> float:
        """Return how long ago ``view`` was entered for the first time; a reschedule does not start it again.

        :raises LedgerError: if a newer view has taken the replica over.
        """
        ...

    def reserve(
        self,
        key: GangKey,
        request: DeviceRequest,
        replicas: Sequence[int],
        host: Host,
        readings: Sequence[Reading],
        turn: Turn = Turn(),
    ) -> Granted | Refused:
        """Reserve devices for all of ``replicas`` in one transaction, or none.

        A refused gang waits in the queue. It is passed by a later one only with devices that it cannot use, or where
        declared time limits show that it is not delayed.

        :raises DevicesNeverFitError: if no registered host can ever satisfy the request.
        """
        ...

    def look(self, key: GangKey) -> Waiting | None:
        """Renew a waiting gang's place without probing; None if it does not wait (granted, or forgotten)."""
        ...

    def withdraw(self, key: GangKey) -> None:
        """Leave the queue (idempotent)."""
        ...

    def bar(self, member: Member, uuids: Sequence[str], why: str, seconds: float = 60.0) -> None:
        """Offer devices that their holder cannot use to nobody for some seconds.

        The member's gang has its place in the queue again when it is next refused.
        """
        ...

    def release_by_hand(self, reservation_id: int, by: str) -> int:
        """Take a reservation away, whatever its state; return how many members it had. Their supervisor ends them.

        :raises LedgerError: if there is no such live reservation.
        """
        ...

    def member(self, key: GangKey, replica: int) -> Member | None:
        """Return the live (reserved or confirmed) member of a replica, newest fence first."""
        ...

    def confirm(self, member: Member, supervisor_pid: int, *siblings: Member) -> None:
        """Turn a reserved member, and others of its gang with it, into confirmed ones: all or none.

        :raises LedgerError: if one is no longer reserved (expired, revoked, released).
        """
        ...

    def renew(self, key: GangKey, supervisor_pid: int) -> Orders:
        """Heartbeat of a gang's supervisor: postpone expiry of its reserved members; return what was asked of it."""
        ...

    def cancel(self, gang_key: str, by: str) -> None:
        """Ask the gang's supervisor to stop it; nothing of it starts again until a user clears one of its tasks."""
        ...

    def release(self, member: Member, *siblings: Member) -> None:
        """Give the member's devices back, and those of others of its gang with them (idempotent)."""
        ...

    def confirmed_on(self, host: Host) -> list[ConfirmedMember]:
        """Return the confirmed members of a host."""
        ...

    def revoke(self, member: Member, why: str) -> None:
        """Take the devices of a member whose supervisor is gone and whose processes are swept.

        Its attempt, if it has not ended, is recorded as lost.
        """
        ...

    def start_attempt(self, key: GangKey, replica: int, generation: int, member: Member, token: str) -> int:
        """Record a new attempt in state STARTING and return its number, counted from 1 in its generation."""
        ...

    def update_attempt(
        self, key: GangKey, replica: int, generation: int, attempt: int, *, pid: int, step: int | None = None
    ) -> None:
        """Record that the attempt runs as ``pid`` and has reached ``step``."""
        ...

    def end_attempt(self, key: GangKey, replica: int, generation: int, attempt: int, outcome: Outcome) -> None:
        """Record the outcome (idempotent; the first terminal outcome stays)."""
        ...

    def replicas(self, key: GangKey) -> dict[int, ReplicaRecord]:
        """Return the current generation of every replica that was ever entered."""
        ...
