"""Rows that readers of the ledger get: plain values, as they are shown."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_tf.core.ledger import Holder

WAITING = "waiting"
"""State of a replica whose program was not started yet."""


@dataclass(frozen=True, slots=True)
class HostRow:
    """One place of a registered host; a ``machine`` may have several, of one name.

    ``seen`` (its last look or registration) is wall time; ``drained`` says by whom and why.
    """

    host_id: str
    machine: str
    name: str
    boot_id: str
    seen: str
    devices: int
    drained: str = ""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device as last read; ``seen`` is wall time; ``barred`` says why it is offered to nobody for a while."""

    host: str
    host_id: str
    uuid: str
    kind: str
    name: str
    index: int
    memory_bytes: int | None
    health: str
    reason: str
    seen: str
    holders: tuple[Holder, ...]
    barred: str


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
class AttemptRow:
    """One attempt of one replica; ``started``, ``updated`` (its last sign) and ``ended`` are wall time."""

    replica: int
    generation: int
    attempt: int
    state: str
    step: int | None
    cause: str
    message: str
    exit_code: int | None
    started: str
    updated: str
    ended: str | None
    checkpoint: str | None


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
    """One replica's live part of a reservation.

    ``expires_in_seconds`` is None once it is confirmed; ``is_suspect`` tells that its supervisor is silent since.
    """

    reservation_id: int
    gang_key: str
    dag_id: str
    run_id: str
    task_id: str
    gang_label: str
    replica: int
    state: str
    host: str
    host_id: str
    devices: tuple[str, ...]
    share_percent: int
    since: str
    supervisor_pid: int | None
    expires_in_seconds: float | None
    is_suspect: bool


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One gang that waits for devices of a host: its position there, counted from 1, and why it was last refused."""

    position: int
    host: str
    gang_key: str
    dag_id: str
    run_id: str
    task_id: str
    gang_label: str
    replicas: tuple[int, ...]
    wanted: int
    priority: int
    waited_seconds: float
    time_limit_seconds: float | None
    reason: str
