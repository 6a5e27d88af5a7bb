"""Device kinds by name, loaded when first asked for."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from airflow_tf.core.devices import DeviceProbe, Health, Reading
from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.settings import Settings
from airflow_tf.devices.locks import SLOTS, DeviceLock

KINDS = {
    "gpu": "airflow_tf.devices.nvml",
    "static": "airflow_tf.devices.static",
    "cpu": "airflow_tf.devices.cpu",
}
"""Kind -> module with ``open_probe(settings)``. The order is that of ``auto``: the first kind with devices."""

REQUESTABLE = ("auto", *KINDS)


def probes(settings: Settings) -> list[DeviceProbe]:
    """Return the probe of every kind, in the order of ``auto``."""
    return [_open(kind, settings) for kind in KINDS]


def read_all(settings: Settings, kind: str) -> list[Reading]:
    """Look at this host's devices of ``kind``; a device that somebody has locked as a whole is BUSY.

    ``auto`` is the first kind that has devices here. A kind that this host has no devices of gives an empty list;
    GPUs that cannot be looked at are UNKNOWN devices, so that ``auto`` never falls from them to CPU slots.

    :raises DeclarationError: if there is no such kind.
    """
    if kind not in REQUESTABLE:
        raise DeclarationError(f"unknown device kind {kind!r}", todo=f"Use one of {', '.join(REQUESTABLE)}.")
    for name in KINDS if kind == "auto" else [kind]:
        if readings := _open(name, settings).read():
            return [_with_lock(reading, settings) for reading in readings]
    return []


def _open(kind: str, settings: Settings) -> DeviceProbe:
    probe: DeviceProbe = import_module(KINDS[kind]).open_probe(settings)
    return probe


def _with_lock(reading: Reading, settings: Settings) -> Reading:
    if reading.health is not Health.FREE:
        return reading
    lock = DeviceLock(settings.lock_dir, reading.device.uuid)
    try:
        held = lock.held_percent()
    except OSError as error:
        return replace(reading, health=Health.UNKNOWN, reason=f"its lock cannot be looked at: {error}")
    if not held:
        return reading
    if held < SLOTS:
        return replace(reading, held_percent=held, reason=f"{held} % of it held by {lock.describe_holders()}")
    reason = f"held by {lock.describe_holders()}, which has locked {lock.path}"
    return replace(reading, health=Health.BUSY, reason=reason, held_percent=held)
