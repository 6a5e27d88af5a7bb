"""GPUs and MIG slices as NVML sees them: who is on them and whether they are sound. Never a CUDA context.

NVML is asked in a process of its own (:mod:`airflow_tf.devices.nvml_child`), for a sick driver hangs or crashes its
caller. What cannot be found out is UNKNOWN, which is never free.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from airflow_tf.core.devices import Device, Health, Reading
from airflow_tf.core.settings import Settings
from airflow_tf.core.units import format_bytes
from airflow_tf.devices.nvml_child import Facts

DEADLINE_SECONDS = 60.0
"""Without the persistence mode, the driver starts every GPU anew for each look: some seconds per GPU."""

INVISIBLE_BYTES = 256 * 2**20
"""More used memory than this, with no process to be seen, is somebody's (of another container, a display)."""

EXCLUSIVE_INVISIBLE_BYTES = 32 * 2**20
"""The same in exclusive compute mode, where one small context keeps everybody else out."""

DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")
"""A folder for each GPU that the driver has found on the bus."""

_CHILD = "airflow_tf.devices.nvml_child"
_ALARM_EXTRA_SECONDS = 5
_KILLED_SECONDS = 2.0
_UUID = re.compile(r"[!-+\--~]{1,150}")  # printable ASCII without the comma, which separates visible devices
_EXCLUSIVE_PROCESS, _PROHIBITED = 3, 2
_NAMED_PROCESSES = 4


@dataclass(slots=True)
class _Report:
    """What the child printed: facts by key; ``failure`` says why it is not all."""

    is_absent: bool = False
    facts: dict[str, Facts] = field(default_factory=dict)
    failure: str = ""


class NvmlProbe:
    """The GPUs of this host, MIG slices in place of their GPU. A host without an NVML library has none."""

    kind = "gpu"

    def __init__(self, deadline_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds

    def read(self) -> Sequence[Reading]:
        """Return one reading per device.

        If NVML fails, hangs or crashes, all are UNKNOWN: those that it could still name, else one that stands for all.
        """
        report = _ask(self._deadline_seconds)
        if report.is_absent:
            return []
        if not report.facts:
            return [_unknown("0", Facts(0, name="all GPUs"), report.failure)] if report.failure else _unlisted()
        twice = [uuid for uuid, count in Counter(facts.uuid for facts in report.facts.values()).items() if count > 1]
        return [_reading(key, facts, report.failure, twice) for key, facts in report.facts.items()]


def open_probe(settings: Settings) -> NvmlProbe:  # noqa: ARG001 (the signature of every kind)
    """Return the probe of this host's GPUs."""
    return NvmlProbe(DEADLINE_SECONDS)


def judge(device: Device, facts: Facts) -> Reading:
    """Say of a device that NVML has named whether it may be used; the worst finding is the reason."""
    health, reason = next(_findings(facts), (Health.FREE, ""))
    return Reading(device, health, reason, facts.free_bytes, facts.utilization_percent)


def _findings(facts: Facts) -> Iterator[tuple[Health, str]]:
    """Yield what speaks against a device, worst first."""
    yield from ((Health.UNHEALTHY, reason) for reason in _damages(facts))
    if facts.errors:
        yield Health.UNKNOWN, "; ".join(dict.fromkeys(facts.errors))
    if facts.processes:
        yield Health.BUSY, _describe_processes(facts)
    is_exclusive = facts.compute_mode == _EXCLUSIVE_PROCESS
    if (facts.used_bytes or 0) > (EXCLUSIVE_INVISIBLE_BYTES if is_exclusive else INVISIBLE_BYTES):
        used = format_bytes(facts.used_bytes or 0)
        mode = ", and its compute mode is exclusive" if is_exclusive else ""
        yield Health.BUSY, f"{used} of its memory are used by a process that cannot be seen from here{mode}"
    if facts.processes is None:
        yield Health.UNKNOWN, "it does not report the processes on it"


def _damages(facts: Facts) -> Iterator[str]:
    """Yield the reasons for which a device needs its administrator."""
    bus = f" (bus {facts.bus_id})" if facts.bus_id else ""
    if facts.lost:
        yield f"lost{bus}: {facts.lost[0]}"
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
    if facts.compute_mode == _PROHIBITED:
        yield "its compute mode prohibits processes"


def _describe_processes(facts: Facts) -> str:
    processes = facts.processes or []
    named = [
        f"pid {pid} ({', '.join([_user_of(pid)] + ([format_bytes(used)] if used is not None else []))})"
        for pid, used in processes[:_NAMED_PROCESSES]
    ]
    more = f" and {len(processes) - _NAMED_PROCESSES} more" if len(processes) > _NAMED_PROCESSES else ""
    mode = " in exclusive compute mode" if facts.compute_mode == _EXCLUSIVE_PROCESS else ""
    return f"used{mode} by {', '.join(named)}{more}"


def _user_of(pid: int) -> str:
    try:
        return f"user {psutil.Process(pid).username()}"
    except psutil.Error:  # it has ended, or belongs to another pid namespace
        return "user unknown"


def _reading(key: str, facts: Facts, failure: str, twice: Sequence[str]) -> Reading:
    if not _UUID.fullmatch(facts.uuid):
        return _unknown(key, facts, failure or "; ".join([*facts.lost, *facts.errors]) or f"its UUID is {facts.uuid!r}")
    if facts.uuid in twice:
        return _unknown(key, facts, f"NVML gives the UUID {facts.uuid} to more than one device")
    device = Device(
        facts.uuid, NvmlProbe.kind, _printable(facts.name), facts.index, visible=facts.uuid,
        memory_bytes=facts.total_bytes,
    )  # fmt: skip
    return Reading(device, Health.UNKNOWN, failure) if failure else judge(device, facts)


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


def _ask(deadline_seconds: float) -> _Report:
    """Run the child to its end, or to the deadline, and collect what it printed until then."""
    alarm = math.ceil(deadline_seconds) + _ALARM_EXTRA_SECONDS
    # -P: a pynvml.py or airflow_tf in the current folder is not ours.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", _CHILD, str(alarm)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    failure = ""
    try:
        output, errors = process.communicate(timeout=deadline_seconds)
    except subprocess.TimeoutExpired:
        failure = f"NVML did not answer within {deadline_seconds:g} s"
        output, errors = _kill(process)
    report = _parse(output.decode(errors="replace"))
    if not failure and process.returncode:
        last = (errors.decode(errors="replace").strip().splitlines() or [""])[-1]
        failure = f"the process that asked NVML ended with {process.returncode}{': ' if last else ''}{last}"
    if failure:
        report.failure = failure
    return report


def _kill(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Kill the child and return its output; one that sleeps in the driver cannot die now and is left to the kernel."""
    process.kill()
    try:
        return process.communicate(timeout=_KILLED_SECONDS)
    except subprocess.TimeoutExpired as error:
        return error.output or b"", b""


def _parse(output: str) -> _Report:
    report = _Report(failure="the process that asked NVML was cut off")
    for text in output.splitlines():
        try:
            line = json.loads(text)
        except ValueError:  # the last line of a process that was killed
            break
        if "facts" in line:
            report.facts[line["key"]] = Facts(**line["facts"])
        else:
            report.is_absent = line.get("absent", False)
            report.failure = line.get("failed", "")
    return report
