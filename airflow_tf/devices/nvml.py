"""GPUs and MIG slices as NVML sees them: who is on them and whether they are sound. Never a CUDA context.

NVML is asked in a process of its own (:mod:`airflow_tf.devices.nvml_child`), for a sick driver hangs or crashes its
caller. What cannot be found out is UNKNOWN, which is never free. Who holds a share of a device is no stranger on it:
its processes are told by the token in their environment, which the device's lock names too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import psutil

from airflow_tf.core.devices import Device, Health, Reading
from airflow_tf.core.identity import FENCE_VARIABLE
from airflow_tf.core.settings import Settings
from airflow_tf.core.units import format_bytes
from airflow_tf.devices.locks import DeviceLock
from airflow_tf.devices.nvml_call import ask_nvml
from airflow_tf.devices.nvml_child import Facts

DEADLINE_SECONDS = 60.0
"""Without the persistence mode, the driver starts every GPU anew for each look: some seconds per GPU."""

INVISIBLE_BYTES = 256 * 2**20
"""More used memory than this, with no process to be seen, is somebody's (of another container, a display)."""

EXCLUSIVE_INVISIBLE_BYTES = 32 * 2**20
"""The same in exclusive compute mode, where one small context keeps everybody else out."""

LOST = "lost"
"""How the reason of a device begins that is gone for every process."""

UNSEEN = "a process that cannot be seen from here"
"""In the reason of a device: who uses its memory if nobody can be named."""

DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")
"""A folder for each GPU that the driver has found on the bus."""

KERNEL_LOG = Path("/dev/kmsg")
"""The kernel's own log, where NVIDIA's driver reports errors; mostly readable by root only."""

_UUID = re.compile(r"[!-+\--~]{1,150}")  # printable ASCII without the comma, which separates visible devices
_EXCLUSIVE_PROCESS, _PROHIBITED = 3, 2
_RECOVERY = {
    1: "a reset of the GPU",
    2: "a restart of the host",
    3: "its peer-to-peer traffic to be drained",
    4: "its traffic to be drained, then a reset of the GPU",
}
_NAMED_PROCESSES = 4


class NvmlProbe:
    """The GPUs of this host, MIG slices in place of their GPU. A host without an NVML library has none."""

    kind = "gpu"

    def __init__(self, deadline_seconds: float, lock_dir: Path) -> None:
        self._deadline_seconds = deadline_seconds
        self._lock_dir = lock_dir

    def read(self) -> Sequence[Reading]:
        """Return one reading per device.

        If NVML fails, hangs or crashes, all are UNKNOWN: those that it could still name, else one that stands for all.
        """
        report = ask_nvml(self._lock_dir, KERNEL_LOG, self._deadline_seconds)
        if report.is_absent:
            return []
        if not report.facts:
            return [_unknown("0", Facts(0, name="all GPUs"), report.failure)] if report.failure else _unlisted()
        twice = [uuid for uuid, count in Counter(facts.uuid for facts in report.facts.values()).items() if count > 1]
        return [self._reading(key, facts, report.failure, twice) for key, facts in report.facts.items()]

    def _reading(self, key: str, facts: Facts, failure: str, twice: Sequence[str]) -> Reading:
        if not _UUID.fullmatch(facts.uuid):
            reason = failure or "; ".join([*facts.lost, *facts.errors]) or f"its UUID is {facts.uuid!r}"
            return _unknown(key, facts, reason)
        if facts.uuid in twice:
            return _unknown(key, facts, f"NVML gives the UUID {facts.uuid} to more than one device")
        device = Device(
            facts.uuid, self.kind, _printable(facts.name), facts.index, visible=facts.uuid,
            memory_bytes=facts.total_bytes,
        )  # fmt: skip
        if failure:
            return Reading(device, Health.UNKNOWN, failure)
        return judge(device, facts, _sharers(DeviceLock(self._lock_dir, facts.uuid), facts))


def open_probe(settings: Settings) -> NvmlProbe:
    """Return the probe of this host's GPUs."""
    return NvmlProbe(DEADLINE_SECONDS, settings.lock_dir)


def judge(device: Device, facts: Facts, sharers: Collection[int] = ()) -> Reading:
    """Say of a device that NVML has named whether it may be used; the worst finding is the reason.

    :param sharers: pids of those processes on it that belong to present holders of its lock.
    """
    health, reason = next(_findings(facts, sharers), (Health.FREE, ""))
    takes_shares = facts.compute_mode != _EXCLUSIVE_PROCESS
    return Reading(device, health, reason, facts.free_bytes, facts.utilization_percent, takes_shares=takes_shares)


def _sharers(lock: DeviceLock, facts: Facts) -> set[int]:
    """Return the pids of the device's processes that carry the token of a holder of its lock."""
    pids = {pid for pid, _ in facts.processes or ()}
    tokens = {holder.token for holder in lock.holders() if holder.token} if pids else set()
    return {pid for pid in pids if tokens and _token_of(pid) in tokens}


def _token_of(pid: int) -> str | None:
    try:
        return psutil.Process(pid).environ().get(FENCE_VARIABLE)
    except (psutil.Error, OSError):  # gone, of another user or pid namespace
        return None


def _findings(facts: Facts, sharers: Collection[int]) -> Iterator[tuple[Health, str]]:
    """Yield what speaks against a device, worst first."""
    yield from ((Health.UNHEALTHY, reason) for reason in _damages(facts))
    if facts.errors:
        yield Health.UNKNOWN, "; ".join(dict.fromkeys(facts.errors))
    strangers = [(pid, used) for pid, used in facts.processes or () if pid not in sharers]
    if strangers:
        mode = " in exclusive compute mode" if facts.compute_mode == _EXCLUSIVE_PROCESS else ""
        yield Health.BUSY, f"used{mode} by {_describe(strangers)}"
    if memory := _memory_of_strangers(facts, sharers):
        yield Health.BUSY, memory
    if facts.processes is None:
        yield Health.UNKNOWN, "it does not report the processes on it"


def _memory_of_strangers(facts: Facts, sharers: Collection[int]) -> str:
    """Say how much memory is used by nobody who is known; empty if it is no more than a driver needs."""
    known = [used for pid, used in facts.processes or () if pid in sharers]
    if facts.used_bytes is not None and None in known:
        return "the memory of those who share it is not reported, so that a stranger's cannot be told from it"
    used_bytes = (facts.used_bytes or 0) - sum(used for used in known if used is not None)
    is_exclusive = facts.compute_mode == _EXCLUSIVE_PROCESS
    if used_bytes <= (EXCLUSIVE_INVISIBLE_BYTES if is_exclusive else INVISIBLE_BYTES):
        return ""
    graphics = [(pid, used) for pid, used in facts.graphics if used and pid not in sharers]
    who = f"graphics of {_describe(graphics)}" if graphics else UNSEEN
    mode = ", and its compute mode is exclusive" if is_exclusive else ""
    return f"{format_bytes(used_bytes)} of its memory are used by {who}{mode}"


def _damages(facts: Facts) -> Iterator[str]:
    """Yield the reasons for which a device needs its administrator."""
    bus = f" (bus {facts.bus_id})" if facts.bus_id else ""
    if facts.lost:
        yield f"{LOST}{bus}: {facts.lost[0]}"
    if facts.has_no_slices:
        yield "MIG is enabled on it, but it has no slice"
    if facts.uncorrected_errors:
        yield f"{facts.uncorrected_errors} uncorrectable ECC errors since the driver was loaded"
    if facts.remap_failed:
        yield "remapping of a bad memory row failed"
    if facts.remap_pending:
        yield "a bad memory row will be remapped when the GPU is reset"
    if facts.retirement_pending:
        yield "a bad memory page will be retired when the GPU is reset"
    if facts.recovery_action:
        action = _RECOVERY.get(facts.recovery_action, f"recovery action {facts.recovery_action}")
        yield "; ".join([f"its driver asks for {action}", *facts.kernel_faults])
    if facts.kernel_faults and facts.recovery_action is None:  # a driver that can say so says whether they are past
        yield f"{'; '.join(facts.kernel_faults)} (the kernel's log, since the driver was loaded){bus}"
    if facts.compute_mode == _PROHIBITED:
        yield "its compute mode prohibits processes"


def _describe(processes: Sequence[tuple[int, int | None]]) -> str:
    named = [
        f"pid {pid} ({', '.join([*_owner_of(pid), *([format_bytes(used)] if used is not None else [])])})"
        for pid, used in processes[:_NAMED_PROCESSES]
    ]
    more = f" and {len(processes) - _NAMED_PROCESSES} more" if len(processes) > _NAMED_PROCESSES else ""
    return f"{', '.join(named)}{more}"


def _owner_of(pid: int) -> list[str]:
    """Return user and command of a process; its arguments may hold secrets."""
    try:
        process = psutil.Process(pid)
        return [f"user {process.username()}", _printable(process.name())]
    except psutil.Error:
        return ["gone, or of another container"]


def _unlisted() -> list[Reading]:
    """Return the GPUs that the driver has but NVML has not, where it has none at all: lost, not absent."""
    buses = sorted(path.name for path in DRIVER_GPUS.glob("*"))
    return [
        _unknown(str(index), Facts(index, bus_id=bus), "the driver has it, but NVML does not list it")
        for index, bus in enumerate(buses)
    ]


def _unknown(key: str, facts: Facts, reason: str) -> Reading:
    """Return the reading of something that cannot be named, so that it is counted but never given away."""
    bus = f" (bus {facts.bus_id})" if facts.bus_id else ""
    uuid = f"unidentified-gpu-{key}"
    device = Device(uuid, NvmlProbe.kind, _printable(facts.name), facts.index, visible="")
    return Reading(device, Health.UNHEALTHY if facts.lost else Health.UNKNOWN, f"{_printable(reason)}{bus}")


def _printable(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split()) or "GPU"
