"""Devices, what a probe reads of them, and what a gang may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class Health(StrEnum):
    """What a probe found, in the order of trust: only ``FREE`` may be reserved; ``UNKNOWN`` is never free."""

    FREE = "free"
    BUSY = "busy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Device:
    """One device of one host, named by an id that survives renumbering.

    ``uuid`` is the NVML UUID of a GPU or MIG slice, a declared name, or ``cpu-<slot>``, unique on its host;
    ``visible`` is what the replica gets as ``CUDA_VISIBLE_DEVICES`` (``-1`` for a CPU slot, empty where the probe could
    not identify the device); ``memory_bytes`` is None where the device does not report it.
    """

    uuid: str
    kind: str
    name: str
    index: int
    visible: str
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at one device; ``reason`` says why it is not free, in words for a log.

    ``held_percent`` is the part of it that holders of shares have locked: such a device is FREE for the rest, and
    ``reason`` names them. ``takes_shares`` is False where the device lets only one process on it.
    """

    device: Device
    health: Health
    reason: str = ""
    free_bytes: int | None = None
    utilization_percent: int | None = None
    held_percent: int = 0
    takes_shares: bool = True

    @property
    def is_blind(self) -> bool:
        """Whether the probe could not identify the device: it may stand for others that it did not see either."""
        return self.health is not Health.FREE and not self.device.visible


@dataclass(frozen=True, slots=True)
class Host:
    """A place where replicas can run: one boot of one machine, seen from one pid and mount namespace."""

    host_id: str
    name: str
    boot_id: str

    @property
    def machine(self) -> str:
        """The part of ``host_id`` before its first ``-``: what stays the same when the machine boots again."""
        return self.host_id.partition("-")[0]


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What a gang asks for: ``per_replica`` devices for each of its replicas, all or nothing.

    ``kind`` is ``auto``, ``gpu``, ``static`` or ``cpu``; ``auto`` takes the kind the host has registered and never
    falls from gpu to cpu by itself. ``names`` are shell patterns of which a device must match one, if given; ``uuids``
    are the only devices to take, if given. ``max_utilization_percent`` None asks nothing of a device's utilization.

    ``share_percent`` below 100 lets other replicas that share have the rest of the device; ``per_host`` is the most
    devices of one host that the gang may hold.
    """

    kind: str = "auto"
    per_replica: int = 1
    min_free_bytes: int = 0
    names: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    max_utilization_percent: int | None = None
    share_percent: int = 100
    per_host: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return asdict(self) | {"names": list(self.names), "uuids": list(self.uuids)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DeviceRequest:
        """Read what :meth:`to_json` gave."""
        return cls(**(data | {"names": tuple(data["names"]), "uuids": tuple(data["uuids"])}))


class DeviceProbe(Protocol):
    """A device kind: looks at the devices of this host without ever using one."""

    kind: str

    def read(self) -> Sequence[Reading]:
        """Return one reading per device; must not raise for a sick device (that is UNKNOWN or UNHEALTHY)."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """A replica's part of a reservation: ``share_percent`` of each of these devices, under this fence."""

    reservation_id: int
    fence: int
    replica: int
    devices: tuple[Device, ...] = field(default=())
    state: str = "reserved"
    share_percent: int = 100
