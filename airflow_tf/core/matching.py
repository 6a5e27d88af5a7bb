"""Which devices of a host serve a request: all that is missing or nothing, and in words why not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from airflow_tf.core.devices import Device, DeviceRequest, Health, Reading
from airflow_tf.core.errors import DevicesNeverFitError
from airflow_tf.core.ledger import Refused
from airflow_tf.core.units import format_bytes

WHOLE_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Offer:
    """A device of the host as the ledger offers it to a gang.

    :param taken_percent: what live members of this ledger share of it, reserved and confirmed.
    :param confirmed_percent: the confirmed part of it; their locks are also in ``reading.held_percent``.
    :param takers: who these members are, in words.
    :param obstacle: why it cannot be had now by all that the ledger knows (held by …, kept for …, barred …).
    """

    reading: Reading
    taken_percent: int = 0
    confirmed_percent: int = 0
    takers: str = ""
    obstacle: str = ""

    @property
    def used_percent(self) -> int:
        """What is taken of it, by this ledger's members or by shares that another installation has locked."""
        return self.taken_percent + max(0, self.reading.held_percent - self.confirmed_percent)


def choose(
    label: str,
    request: DeviceRequest,
    replicas: int,
    missing: int,
    offers: Sequence[Offer],
    host_name: str,
    other_hosts: Sequence[tuple[str, int]] = (),
) -> list[tuple[Device, ...]] | Refused:
    """Return the devices of each of the ``missing`` replicas of ``replicas``, or say why not all can have theirs now.

    Exclusive devices are taken in the order of their index, shares first where other shares already are.

    :param label: the gang in words.
    :param offers: every device known in this boot of the host; a lost one is there too, and is waited for.
    :param other_hosts: name and :func:`count_places` of each other registered host, for the error.
    :raises DevicesNeverFitError: if the host can never satisfy the request, whoever leaves.
    """
    suitable = [offer for offer in offers if offer.reading.is_blind or suits(offer.reading.device, request)]
    _check_fits(label, request, replicas, offers, suitable, host_name, other_hosts)
    room = {offer.reading.device.uuid: min(count_parts(offer, request), missing) for offer in suitable}
    wanted = missing * request.per_replica
    if sum(room.values()) < wanted:
        reasons = tuple(reason for offer in suitable if (reason := _obstacle(offer, request)))
        return Refused(wanted, sum(room.values()), reasons)
    order = sorted(suitable, key=lambda offer: (-offer.used_percent, offer.reading.device.index))
    parts = [offer.reading.device for offer in order for _ in range(room[offer.reading.device.uuid])][:wanted]
    if request.share_percent == WHOLE_PERCENT:
        return [tuple(parts[first * request.per_replica :][: request.per_replica]) for first in range(missing)]
    # A device has at most ``missing`` parts, all in a row: dealt out in turn, no replica gets two of one device.
    return [tuple(parts[first::missing]) for first in range(missing)]


def suits(device: Device, request: DeviceRequest) -> bool:
    """Tell whether the device could ever serve; memory that is not reported is no hindrance.

    Of a device that is shared, the replica's part of the memory must be large enough.
    """
    memory = None if device.memory_bytes is None else device.memory_bytes * request.share_percent // WHOLE_PERCENT
    return (
        request.kind in {"auto", device.kind}
        and (memory is None or memory >= request.min_free_bytes)
        and (not request.names or any(fnmatchcase(device.name, pattern) for pattern in request.names))
        and (not request.uuids or device.uuid in request.uuids)
    )


def count_places(devices: Iterable[Device], request: DeviceRequest, replicas: int) -> int:
    """Return how many places for devices of ``replicas`` a host with these devices has, when it is idle."""
    each = min(WHOLE_PERCENT // request.share_percent, replicas)
    return each * sum(suits(device, request) for device in devices)


def check_per_host(label: str, request: DeviceRequest, replicas: int, host_name: str) -> None:
    """Check the gang's own limit for one host.

    :param replicas: all of the gang on the host, those that have their devices included.
    :raises DevicesNeverFitError: if they need more.
    """
    total = replicas * request.per_replica
    if request.per_host is not None and total > request.per_host:
        raise DevicesNeverFitError(
            f"{label} wants {total} devices of host {host_name}",
            f"its per_host allows at most {request.per_host}",
            "Raise per_host, or ask for fewer devices.",
        )


def _check_fits(
    label: str,
    request: DeviceRequest,
    replicas: int,
    offers: Sequence[Offer],
    suitable: Sequence[Offer],
    host_name: str,
    other_hosts: Sequence[tuple[str, int]],
) -> None:
    total = replicas * request.per_replica
    check_per_host(label, request, replicas, host_name)
    if any(offer.reading.is_blind for offer in suitable):
        return  # it may stand for any number of devices
    known = {offer.reading.device.uuid for offer in offers}
    unknown = [uuid for uuid in request.uuids if uuid not in known]
    if unknown and not any(count for _, count in other_hosts):
        raise DevicesNeverFitError(
            f"{label} wants {', '.join(unknown)}",
            f"host {host_name} knows only {', '.join(sorted(known)) or 'no device'}",
            "Correct uuids: they are as 'airflow tf devices' shows them.",
        )
    places = count_places((offer.reading.device for offer in suitable), request, replicas)
    if places < total:
        raise DevicesNeverFitError(
            f"{label} wants {total} {_describe(request, offers)}",
            f"host {host_name} has {places}",
            _remedy(total, other_hosts),
        )


def _describe(request: DeviceRequest, offers: Sequence[Offer]) -> str:
    kinds = sorted({offer.reading.device.kind for offer in offers})
    kind = request.kind if request.kind != "auto" else "/".join(kinds) or "auto"
    part = f"shares of {request.share_percent} % of " if request.share_percent < WHOLE_PERCENT else ""
    memory = f" with at least {format_bytes(request.min_free_bytes)}" if request.min_free_bytes else ""
    names = f" named {' or '.join(request.names)}" if request.names else ""
    uuids = f" out of {', '.join(request.uuids)}" if request.uuids else ""
    return f"{part}devices of kind {kind}{memory}{names}{uuids}"


def _remedy(total: int, other_hosts: Sequence[tuple[str, int]]) -> str:
    able = [name for name, count in other_hosts if count >= total]
    if able:
        return f"Run it on {' or '.join(able)}, which can serve it."
    best = max(other_hosts, key=lambda host: host[1], default=None)
    others = f" No other host has more than {best[1]} ({best[0]})." if best is not None else ""
    declare = " [airflow_tf] cpu_slots and static_devices declare devices."
    return f"Ask for fewer devices, or run it where more are.{others}{declare}"


def count_parts(offer: Offer, request: DeviceRequest) -> int:
    """Return how many replicas can have their part of the device now."""
    if _refusal(offer, request):
        return 0
    parts = (WHOLE_PERCENT - offer.used_percent) // request.share_percent
    free = offer.reading.free_bytes
    if offer.used_percent or free is None or not request.min_free_bytes:
        return parts  # with sharers on it, what is free now says nothing of what is promised to them
    return min(parts, free // request.min_free_bytes)


def _obstacle(offer: Offer, request: DeviceRequest) -> str:
    """Say why not all of the device can be had now; empty if it can."""
    uuid, used = offer.reading.device.uuid, offer.used_percent
    if refusal := _refusal(offer, request):
        return refusal
    if used:
        return f"{uuid}: {f'{used} % of it held by {offer.takers}' if offer.takers else offer.reading.reason}"
    if count_parts(offer, request) < WHOLE_PERCENT // request.share_percent:
        free = format_bytes(offer.reading.free_bytes or 0)
        return f"{uuid}: {free} of {format_bytes(request.min_free_bytes)} memory free"
    return ""


def _refusal(offer: Offer, request: DeviceRequest) -> str:
    """Say why nothing of the device can be had now, whoever shares it; empty if there is no such reason."""
    reading = offer.reading
    uuid, load, limit = reading.device.uuid, reading.utilization_percent, request.max_utilization_percent
    if offer.obstacle:
        return offer.obstacle
    if reading.health is not Health.FREE:
        sharers = f"; {offer.taken_percent} % of it held by {offer.takers}" if offer.takers else ""
        return f"{uuid} {reading.health.value}: {reading.reason or 'no reason given'}{sharers}"
    if request.share_percent < WHOLE_PERCENT and not reading.takes_shares:
        return f"{uuid}: its compute mode lets only one process on it"
    if load is not None and limit is not None and load > limit:
        return f"{uuid}: its utilization of {load} % is above {limit} %"
    return ""
