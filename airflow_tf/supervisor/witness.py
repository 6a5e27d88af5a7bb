"""What the host knows of the end of a replica's process: was it the OOM killer, does the host shut down."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections import deque
from pathlib import Path

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.units import format_bytes
from airflow_tf.devices.kernel_log import read_records
from airflow_tf.supervisor.cgroup import MemoryGroup, own_cgroup, own_oom_kills

KERNEL_LOG = Path("/dev/kmsg")
_COUNTERS = Path("/proc/vmstat")
_ASK_SECONDS = 2.0
_RECENT_SECONDS = 60.0
_KEPT_SAMPLES = 2


class OomWitness:
    """Remember the kernel's counts of OOM kills, so that a death can be laid beside a kill of the same moment."""

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=_KEPT_SAMPLES)
        self.sample()

    def sample(self) -> None:
        """Take the counts now; call it about every second."""
        self._samples.append(_host_kills())

    def testify(self, pid: int, group: MemoryGroup | None, *, was_killed: bool) -> str:
        """Say in words what speaks for an OOM kill of the process that has just ended; empty if nothing does.

        :param was_killed: whether it ended by SIGKILL, as the OOM killer does.
        """
        if group is not None and group.oom_kills():
            return f"it needed more than its memory limit of {format_bytes(group.limit_bytes)}"
        if not was_killed:
            return ""
        if is_named_in(KERNEL_LOG, pid, time.monotonic() - _RECENT_SECONDS):
            return "the host ran out of memory (the kernel's log names its pid)"
        if _host_kills() > self._samples[0]:
            return "the host ran out of memory (the kernel ended processes for it in the same second)"
        return ""


def _host_kills() -> int:
    """Return the larger of the counts that can be read: the host's and this cgroup's; neither says whom."""
    counts = [0]
    with contextlib.suppress(OSError):
        lines = _COUNTERS.read_text().splitlines()
        counts += [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
    with contextlib.suppress(DeclarationError):  # no cgroup of version 2
        counts.append(own_oom_kills(own_cgroup()))
    return max(counts)


def is_named_in(kernel_log: Path, pid: int, since_seconds: float) -> bool:
    """Tell whether the kernel's log says that its OOM killer ended ``pid``; False where it cannot be read.

    :param since_seconds: on the monotonic clock; earlier ones speak of another process of that pid.
    """
    text = f"Killed process {pid} (".encode()
    return any(text in record and _written_at(record) >= since_seconds for record in read_records(kernel_log))


def _written_at(record: bytes) -> float:
    """Return the seconds since boot of a record, which begins ``priority,sequence,microseconds,…;``."""
    return int(record.split(b",", 3)[2]) / 1e6


def host_ending() -> str:
    """Say in words that the host is being shut down; empty if it is not, as far as can be seen."""
    program = shutil.which("systemctl")
    if program is None:
        return ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = [program, "is-system-running"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=False)
        return "the host is being shut down" if done.stdout.strip() == "stopping" else ""
    return ""
