"""Declared devices: a list in the configuration, for accelerators that no probe of ours can see."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_tf.core.devices import Device, Health, Reading
from airflow_tf.core.settings import Settings


class StaticProbe:
    """The devices as declared; only their locks tell whether they are in use."""

    kind = "static"

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = devices

    def read(self) -> Sequence[Reading]:
        """Return one reading per declared device."""
        return [Reading(device, Health.FREE) for device in self._devices]


def open_probe(settings: Settings) -> StaticProbe:
    """Return the probe of the declared devices."""
    return StaticProbe(settings.static_devices)
