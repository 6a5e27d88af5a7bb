"""What the pages are told, as JSON. Times are wall time as text, as the ledger has them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class Gang(BaseModel):
    """Whose something is; all empty where the user may not read that DAG."""

    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""


class Holder(BaseModel):
    """One replica that holds a device, or a share of it; ``state`` as in ``airflow tf reservations``."""

    gang: Gang
    replica: int
    state: str
    share_percent: int
    since: str


class DeviceModel(BaseModel):
    """One device; free memory and utilization are known only where the API server looks at the device itself."""

    host: str
    uuid: str
    kind: str
    name: str
    state: str
    memory_bytes: int | None
    free_bytes: int | None
    utilization_percent: int | None
    reason: str
    holders: list[Holder]


class HostModel(BaseModel):
    """One registered host; ``seen`` is when it was last looked at."""

    name: str
    seen: str
    devices: int


class Waiter(BaseModel):
    """One gang that waits for devices of a host."""

    host: str
    position: int
    gang: Gang
    replicas: int
    wanted: int
    priority: int
    waited_seconds: float
    reason: str


class DevicesPage(BaseModel):
    """All devices; ``problem`` says why this host's were not looked at now."""

    hosts: list[HostModel]
    devices: list[DeviceModel]
    queue: list[Waiter]
    problem: str = ""


class Replica(BaseModel):
    """One replica in its current generation; ``rate`` is in steps per second; ``updated`` is its last sign."""

    replica: int
    state: str
    generation: int
    attempts: int
    devices: list[str]
    step: int | None
    rate: float | None
    is_slowest: bool
    cause: str
    message: str
    started: str | None
    updated: str | None
    ended: str | None


class Attempt(BaseModel):
    """One attempt of one replica."""

    replica: int
    generation: int
    attempt: int
    state: str
    step: int | None
    cause: str
    message: str
    exit_code: int | None
    started: str
    ended: str | None
    checkpoint: str | None


class Training(BaseModel):
    """One gang: ``renewed`` is its supervisor's last heartbeat; ``is_here`` whether its run folder can be read."""

    key: str
    task_id: str
    since: str
    renewed: str | None
    cancelled_by: str | None
    count: int | None
    is_here: bool
    replicas: list[Replica]
    attempts: list[Attempt]


class TrainingPage(BaseModel):
    """The gangs of one DAG run, newest first."""

    gangs: list[Training]


class Curve(BaseModel):
    """What a replica's metrics have gained behind a cursor.

    ``points`` are (step, value) by series; ``cursor`` is where to go on; ``is_new`` tells that all of before is void;
    ``has_more`` that there is more to read at once.
    """

    replica: int
    cursor: str
    is_new: bool
    has_more: bool
    points: dict[str, list[tuple[int, float]]]


class Curves(BaseModel):
    """The curves of some replicas."""

    curves: list[Curve]


class Checkpoint(BaseModel):
    """One checkpoint on the training host; ``problem`` is empty where it is whole."""

    name: str
    step: int | None
    size_bytes: int
    saved: str
    problem: str


class Details(BaseModel):
    """What the folders of a replica tell: its session config as asked and as applied, placement, checkpoints.

    ``placement`` is the number of operations by device; ``on_cpu`` are those that fell to the CPU;
    ``transfers`` is the number of tensors that move between devices, by ``from -> to``.
    """

    replica: int
    session_config: dict[str, Any]
    placement: dict[str, int]
    on_cpu: list[str]
    transfers: dict[str, int]
    checkpoints: list[Checkpoint]
