"""What the kernel's log says of sick GPUs: NVML cannot be asked for errors that happened while nobody listened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

SICK_XIDS = {
    46: "the GPU stopped processing",
    48: "a double-bit memory error",
    62: "its micro-controller halted",
    64: "a bad memory row or page could not be put out of use",
    74: "an NVLink error",
    79: "it fell off the bus",
    95: "an uncontained memory error",
    119: "its system processor (GSP) did not answer",
    120: "its system processor (GSP) failed",
    140: "an unrecovered memory error",
}
"""Xids after which a GPU needs a reset or its host a restart; the others are of programs, or only tell.

From NVIDIA's public Xid catalog, https://docs.nvidia.com/deploy/xid-errors/. A pending remap (63) is asked of NVML;
after a contained error (94) only the program that had it must end.
"""

_RECORD_BYTES = 8192  # a record of /dev/kmsg is never longer
_LOADED = re.compile(r"NVRM: loading NVIDIA")
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
_FALLEN = re.compile(r"The NVIDIA GPU ([0-9a-fA-F:.]+)(?:(?!The NVIDIA GPU)[\s\S]){0,400}?fallen off the bus")
_BUS = re.compile(r"(?:([0-9a-fA-F]+):)?([0-9a-fA-F]+):([0-9a-fA-F]+)")


def read_records(path: Path) -> Iterator[bytes]:
    """Yield what the log holds now, a record at a time, without waiting for more; nothing where it may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        while True:
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except BrokenPipeError:  # older records were overwritten meanwhile: go on with what is there
                continue
            except OSError:  # the end of the log so far, or no permission
                return
            if not record:
                return
            yield record
    finally:
        os.close(descriptor)


def read_kernel_log(path: Path) -> str:
    """Return all that the log holds now; nothing where it may not be read."""
    return b"".join(read_records(path)).decode(errors="replace")


def find_faults(log: str) -> dict[str, list[str]]:
    """Return, by :func:`bus_key`, what the log tells of sick GPUs since the driver was loaded."""
    starts = [match.end() for match in _LOADED.finditer(log)]
    text = log[starts[-1] :] if starts else log
    faults: dict[str, list[str]] = {}
    for bus, number in _XID.findall(text):
        if meaning := SICK_XIDS.get(int(number)):
            faults.setdefault(bus_key(bus), []).append(f"Xid {number}: {meaning}")
    for bus in _FALLEN.findall(text):
        faults.setdefault(bus_key(bus), []).append("it fell off the bus")
    return {bus: list(dict.fromkeys(texts)) for bus, texts in faults.items()}


def bus_key(bus_id: str) -> str:
    """Return a PCI address without what NVML and the kernel write differently: ``0:3b:0``."""
    match = _BUS.match(bus_id)
    return ":".join(f"{int(part or '0', 16):x}" for part in match.groups()) if match else bus_id
