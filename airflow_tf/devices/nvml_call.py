"""Run the process that asks NVML: one at a time on a host, with a deadline, so that a hung driver holds one at most."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from airflow_tf.core.errors import DeviceLockError
from airflow_tf.devices.locks import DeviceLock, ensure_lock_folder
from airflow_tf.devices.nvml_child import Facts

CHILD = "airflow_tf.devices.nvml_child"
LOCK = "nvml-probe"

_ALARM_EXTRA_SECONDS = 5
_KILLED_SECONDS = 2.0
_PAUSE_SECONDS = 0.02


@dataclass(slots=True)
class Report:
    """What the child printed: facts by key; ``failure`` says why it is not all."""

    is_absent: bool = False
    facts: dict[str, Facts] = field(default_factory=dict)
    failure: str = ""


def ask_nvml(lock_dir: Path, kernel_log: Path, deadline_seconds: float) -> Report:
    """Run the child to its end, or to the deadline, and collect what it printed until then.

    The child inherits a host-wide lock and keeps it until it is gone, also where the driver hangs and it cannot be
    killed: no second one joins it there.
    """
    deadline = time.monotonic() + deadline_seconds
    lock = DeviceLock(lock_dir, LOCK)
    try:
        ensure_lock_folder(lock_dir)
        while not lock.try_acquire():
            if failure := _why_not_now(lock, deadline):
                return Report(failure=failure)
            time.sleep(_PAUSE_SECONDS)
    except DeviceLockError:  # who reserves is told; looking must work before the folder is set up
        return _run(kernel_log, deadline, deadline_seconds, None)
    try:
        return _run(kernel_log, deadline, deadline_seconds, lock)
    finally:
        lock.release()


def _why_not_now(lock: DeviceLock, deadline: float) -> str:
    """Say why no look is possible while another one goes on; empty if it may end in time."""
    for holder in lock.holders():
        pid, _, overdue = holder.token.partition("@")
        is_late = overdue and time.clock_gettime(time.CLOCK_BOOTTIME) > float(overdue)
        if is_late and Path("/proc", pid).exists():
            return f"an earlier look at NVML (pid {pid}) hangs in the driver and cannot be killed"
    if time.monotonic() > deadline:
        return "other looks at NVML took all the time"
    return ""


def _run(kernel_log: Path, deadline: float, deadline_seconds: float, lock: DeviceLock | None) -> Report:
    alarm_seconds = math.ceil(deadline_seconds) + _ALARM_EXTRA_SECONDS
    # -P: a pynvml.py or airflow_tf in the current folder is not ours.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", CHILD, str(alarm_seconds), str(kernel_log)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[] if lock is None else [lock.fileno],
    )
    if lock is not None:
        overdue = time.clock_gettime(time.CLOCK_BOOTTIME) + deadline_seconds + _KILLED_SECONDS
        lock.write_token(f"{process.pid}@{overdue:.3f}")
    failure = ""
    try:
        output, errors = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
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


def _parse(output: str) -> Report:
    report = Report(failure="the process that asked NVML was cut off")
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
