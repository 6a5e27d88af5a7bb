"""Where TensorFlow put a program's operations, and which device it asked for in vain, from the program's output.

The lines are those of TensorFlow 2.21 with ``log_device_placement``: a graph's whole placement at its session's first
run, an eager operation's at its first use. Each may be written twice, on standard output and in the log.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_GRAPH = re.compile(r"(?:^|\] )(?P<name>[\w.\-/>]+): \((?P<kind>\w+)\): (?P<device>/job:\S+|/device:\S+)\s*$")
_EAGER = re.compile(r"Executing op (?P<kind>\w+) in device (?P<device>/job:\S+|/device:\S+)\s*$")
_DEVICE = re.compile(r"(?:^|[:/])(CPU|GPU|XLA_CPU|XLA_GPU|TPU):(\d+)$", re.IGNORECASE)

_MISSING_IN_GRAPH = re.compile(
    r"Cannot assign a device for operation (?P<operation>\S+): .*?explicitly assigned to (?P<asked>\S+)"
    r" but available devices are \[ *(?P<available>.*?) *\]",
    re.DOTALL,
)
_MISSING_EAGER = re.compile(
    r"Could not satisfy device specification '(?P<asked>[^']+)'"
    r".*?All available devices \[(?P<available>[^\]]*)\](?:.*?\[Op:(?P<operation>\w+)\])?",
    re.DOTALL,
)
_MISSING_IN_FUNCTION = re.compile(
    r"Unable to find any devices for spec (?P<asked>[^\s\[]+)(?:.*?\[Op:(?P<operation>\w+)\])?", re.DOTALL
)
_MISSING = (_MISSING_IN_GRAPH, _MISSING_EAGER, _MISSING_IN_FUNCTION)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: its name in the graph (its type where eager), its type, and where it runs."""

    name: str
    kind: str
    device: str


def read_placement(lines: Iterable[str]) -> list[Operation]:
    """Return each operation once, in the order in which TensorFlow placed them."""
    found: dict[tuple[str, str], Operation] = {}
    for line in lines:
        match = _GRAPH.search(line) or _EAGER.search(line)
        if match:
            name = match.groupdict().get("name") or match["kind"]
            operation = Operation(name, match["kind"], match["device"])
            found.setdefault((name, operation.device), operation)
    return list(found.values())


def placement_report(operations: Iterable[Operation], *, has_gpu: bool) -> dict[str, Any]:
    """Return the operations with their devices, how many each device has, and those that a GPU replica left to the CPU.

    :param has_gpu: whether the replica was given GPUs.
    """
    placed = list(operations)
    sees_gpu = any(":GPU:" in operation.device.upper() for operation in placed)
    why = (
        "it was assigned there, works on host data, or has no kernel for GPUs"
        if sees_gpu
        else "no operation is on a GPU: the program assigns all to the CPU, or TensorFlow sees no GPU"
    )
    return {
        "operations": [
            {"name": operation.name, "type": operation.kind, "device": operation.device} for operation in placed
        ],
        "counts": dict(Counter(operation.device for operation in placed)),
        "on_cpu": {
            operation.name: why for operation in placed if has_gpu and ":CPU:" in operation.device.upper()
        },
    }  # fmt: skip


def missing_device(text: str) -> str:
    """Say which operation asked for a device that does not exist, and what exists; an empty text if none did."""
    for pattern in _MISSING:
        if match := pattern.search(text):
            return _say_missing(match.groupdict())
    return ""


def _say_missing(found: dict[str, str | None]) -> str:
    operation = f"operation {found['operation']}" if found.get("operation") else "an operation"
    available = [_short(device) for device in (found.get("available") or "").split(",") if device.strip()]
    exists = f"; there is {', '.join(dict.fromkeys(available))}" if available else ""
    return (
        f"{operation} asked for {_short(found['asked'] or '')}, which does not exist{exists}. "
        "session_config.allow_soft_placement: true would place it on what there is; "
        "devices.per_replica gives a replica more devices"
    )


def _short(device: str) -> str:
    match = _DEVICE.search(device.strip())
    return f"{match[1].upper()}:{match[2]}" if match else device.strip()
