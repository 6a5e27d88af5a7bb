"""CPU slots: places for replicas on a host without accelerators."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_tf.core.devices import Device, Health, Reading
from airflow_tf.core.settings import Settings


class CpuProbe:
    """The slots ``cpu-0``, ``cpu-1``, …: as many as configured; they isolate nothing, they only count."""

    kind = "cpu"

    def __init__(self, slots: int) -> None:
        self._slots = slots

    def read(self) -> Sequence[Reading]:
        """Return one reading per slot; a slot is never sick."""
        return [
            Reading(Device(f"cpu-{slot}", self.kind, f"CPU slot {slot}", slot, visible="-1"), Health.FREE)
            for slot in range(self._slots)
        ]


def open_probe(settings: Settings) -> CpuProbe:
    """Return the probe of the configured slots."""
    return CpuProbe(settings.cpu_slots)
