"""Watching the devices that replicas hold, and what the host knows of their ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from airflow_tf.core.causes import Evidence
from airflow_tf.core.devices import Device, Health, Member, Reading
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import ExitCause
from airflow_tf.devices.nvml import LOST, UNSEEN
from airflow_tf.devices.registry import read_all
from airflow_tf.supervisor import results
from airflow_tf.supervisor.attempt import Alarm, Attempt, ReplicaRun
from airflow_tf.supervisor.events import collect_events
from airflow_tf.supervisor.output import OutputKeeper
from airflow_tf.supervisor.progress import StragglerWatch
from airflow_tf.supervisor.stacks import is_frozen, state_of
from airflow_tf.supervisor.witness import OomWitness, host_ending

log = logging.getLogger(__name__)

DEVICE_LOOK_SECONDS = 30.0
MEMORY_GONE_SECONDS = 30.0
"""Time after the end of the last process within which a GPU's memory must be free."""

_MEMORY_POLL_SECONDS = 1.0
_GPU = "gpu"

Look = Callable[[], Sequence[Reading]]
"""A look at all GPUs of this host."""


def gpu_look(settings: Settings) -> Look:
    """Return the look of this host."""
    return lambda: read_all(settings, _GPU)


def damage(devices: Sequence[Device], readings: Sequence[Reading]) -> dict[str, str]:
    """Return what is wrong with those GPUs of ``devices`` that are unhealthy or gone: UUID -> why.

    A GPU is gone if the driver lists others but not this one; where anything is unknown, nothing is concluded.
    """
    found = {reading.device.uuid: reading for reading in readings}
    is_whole = bool(readings) and all(reading.health is not Health.UNKNOWN for reading in readings)
    wrong: dict[str, str] = {}
    for device in devices:
        reading = found.get(device.uuid)
        if device.kind != _GPU:
            continue
        if reading is None and is_whole:
            blind = next((other.reason for other in readings if other.is_blind), "")
            wrong[device.uuid] = f"{LOST}: NVML no longer lists it{f' ({blind})' if blind else ''}"
        elif reading is not None and reading.health is Health.UNHEALTHY:
            wrong[device.uuid] = reading.reason
    return wrong


def leftover(member: Member, readings: Sequence[Reading]) -> str:
    """Say which GPUs of a member still have memory in use that belongs to no process; empty if none.

    Of a GPU that is shared nothing can be said: its other holders' memory is in use.
    """
    if member.share_percent < 100:  # noqa: PLR2004 (percent)
        return ""
    uuids = {device.uuid for device in member.devices if device.kind == _GPU}
    used = [reading for reading in readings if reading.device.uuid in uuids and reading.health is Health.BUSY]
    return "; ".join(f"{reading.device.uuid}: {reading.reason}" for reading in used if UNSEEN in reading.reason)


def holds_gpus(member: Member) -> bool:
    """Tell whether a member has GPUs, which can be looked at."""
    return any(device.kind == _GPU for device in member.devices)


def wait_memory_gone(member: Member, look: Look, deadline_seconds: float = MEMORY_GONE_SECONDS) -> str:
    """Wait until the memory of a member's GPUs is free, its processes being gone; say what is not at the deadline."""
    if not holds_gpus(member):
        return ""
    deadline = time.monotonic() + deadline_seconds
    while (left := leftover(member, look())) and time.monotonic() < deadline:
        time.sleep(_MEMORY_POLL_SECONDS)
    return left


class DeviceWatch:
    """Watch the GPUs of an attempt: one that is lost ends it, one that turns unhealthy is said once."""

    def __init__(self, members: Mapping[int, Member], look: Look, look_seconds: float = DEVICE_LOOK_SECONDS) -> None:
        self._members = members
        self._look = look
        self._look_seconds = look_seconds
        self._said: set[str] = set()

    async def __call__(self, attempt: Attempt) -> Alarm:
        """Return when a GPU of a replica that runs is lost."""
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                readings = await asyncio.to_thread(self._look)
            except OSError as error:  # no process could be started for it
                log.warning("the GPUs could not be looked at: %s", error)
                continue
            for number, uuid, why in self._found(attempt, readings):
                if why.startswith(LOST):
                    return Alarm(number, ExitCause.DEVICE_LOST, f"its device {uuid} is {why}")
                if uuid not in self._said:
                    self._said.add(uuid)
                    attempt.note(f"device {uuid} of replica {number} is not sound any more: {why}")

    def _found(self, attempt: Attempt, readings: Sequence[Reading]) -> Iterator[tuple[int, str, str]]:
        """Yield replica, UUID and damage of what is in use by replicas that run."""
        for number, run in attempt.runs.items():
            if not run.has_ended:
                for uuid, why in damage(self._members[number].devices, readings).items():
                    yield number, uuid, why


class Caretaker:
    """What is done for all replicas of a supervisor every second, and what is known when one has ended."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keepers: dict[Path, OutputKeeper] = {}
        self._ooms = OomWitness()
        self._stragglers = StragglerWatch()

    def look(self, runs: Mapping[int, ReplicaRun]) -> None:
        """Take a look at the replicas that run; blocks for as long as output is compressed."""
        self._ooms.sample()
        outputs = {run.folder / results.OUTPUT_FILE for run in runs.values()}
        self._keepers = {path: self._keepers.get(path) or self._keeper(path) for path in outputs}
        for keeper in self._keepers.values():
            keeper.look()
        for run in runs.values():
            if not run.has_ended:
                collect_events(run.folder, Path(run.launch.checkpoint_folder))
        self._stragglers.look(runs)

    def _keeper(self, path: Path) -> OutputKeeper:
        return OutputKeeper(path, self._settings.output_bytes)

    def testify(self, run: ReplicaRun, member: Member, siblings: Mapping[int, ReplicaRun]) -> Evidence:
        """Say what the host knows of a failure; ``siblings`` are the replicas that run on."""
        wrong = damage(member.devices, gpu_look(self._settings)()) if holds_gpus(member) else {}
        process = run.process
        ooms = "" if process is None else self._ooms.testify(process.pid, run.group, was_killed=process.was_killed)
        return Evidence(
            host_oom=ooms,
            device="; ".join(f"its device {uuid}: {why}" for uuid, why in wrong.items()),
            host_ending=host_ending(),
            peers="; ".join(_frozen(siblings)),
        )


def _frozen(siblings: Mapping[int, ReplicaRun]) -> Iterator[str]:
    """Say which replicas cannot run their own code: others wait for them."""
    for number, run in siblings.items():
        if run.process is not None and is_frozen(run.process.pid):
            yield f"replica {number} is {state_of(run.process.pid)}"
