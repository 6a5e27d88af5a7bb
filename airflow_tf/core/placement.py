"""Where TensorFlow put a program's operations, and which device it asked for in vain.

The lines are those of TensorFlow 2.21 with ``log_device_placement``: a graph's whole placement at its session's first
run, an eager operation's at its first use. Each may be written twice, on standard output and in the log. Partitions of
graphs are lines of JSON that a replica writes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_GRAPH = re.compile(r"(?:^|\] )(?P<name>[\w.\-/>]+): \((?P<kind>\w+)\): (?P<device>/job:\S+|/device:\S+)\s*$")
_EAGER = re.compile(r"Executing op (?P<kind>\w+) in device (?P<device>/job:\S+|/device:\S+)\s*$")
_TASK = re.compile(r"/job:(?!localhost\b)(\w+)(?:/replica:\d+)?(?:/task:(\d+))?")
_DEVICE = re.compile(r"(?:^|[:/])(CPU|GPU|XLA_CPU|XLA_GPU|TPU):(\d+)$", re.IGNORECASE)

_MISSING_IN_GRAPH = re.compile(
    r"Cannot assign a device for operation (?P<operation>\S+): .*?explicitly assigned to (?P<asked>\S+)"
    r" but available devices are \[ *(?P<available>.*?) *\]",
    re.DOTALL,
)
_MISSING_COLOCATED = re.compile(
    r"Cannot assign a device for operation (?P<operation>\S+): Could not satisfy explicit device specification '[^']*'"
    r" because the node [^.]*?required incompatible device '(?P<asked>[^']+)'\."
    r" All available devices \[(?P<available>[^\]]*)\]",
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
_MISSING_COPY = re.compile(r"(?P<asked>[\w/:]*\b[A-Z]+:\d+) unknown device\.")
_MISSING = (_MISSING_IN_GRAPH, _MISSING_COLOCATED, _MISSING_EAGER, _MISSING_IN_FUNCTION, _MISSING_COPY)
_NO_KERNEL = re.compile(
    r"Cannot assign a device for operation (?P<operation>\S+): Could not satisfy explicit device specification"
    r" '(?P<asked>[^']+)' because no supported kernel for \w+ devices is available",
    re.DOTALL,
)
_RECEIVES = frozenset({"_Recv", "_HostRecv"})
_OF_THE_RUNTIME = _RECEIVES | {"_Send", "_HostSend"}
_SOFT = "session_config.allow_soft_placement: true would place it on what there is"
_MORE = "devices.per_replica gives a replica more devices"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: its name in the graph (its type where eager), its type, and where it runs."""

    name: str
    kind: str
    device: str


def read_placement(lines: Iterable[str]) -> list[Operation]:
    """Return each operation once, in the order in which TensorFlow placed them."""
    matches = (_GRAPH.search(line) or _EAGER.search(line) for line in lines)
    return _once(
        Operation(match.groupdict().get("name") or match["kind"], match["kind"], match["device"])
        for match in matches
        if match
    )


def _once(operations: Iterable[Operation]) -> list[Operation]:
    """Return the first of each name and device, in their order."""
    found: dict[tuple[str, str], Operation] = {}
    for operation in operations:
        found.setdefault((operation.name, operation.device), operation)
    return list(found.values())


def read_partitions(lines: Iterable[str]) -> tuple[list[Operation], dict[str, int]]:
    """Return the operations of partitions, and how many tensors move between devices: ``"a -> b"`` -> number.

    A line that is not whole is passed over: its writer was killed.
    """
    found: list[Operation] = []
    transfers: Counter[str] = Counter()
    for line in lines:
        try:
            row = json.loads(line)
            operation = Operation(row["name"], row["type"], row["device"])
        except (ValueError, KeyError, TypeError):
            continue
        if operation.kind in _RECEIVES and row.get("from"):
            transfers[f"{row['from']} -> {operation.device}"] += 1
        if operation.kind not in _OF_THE_RUNTIME:
            found.append(operation)
    return found, dict(transfers)


def placement_report(
    operations: Iterable[Operation], *, has_gpu: bool, transfers: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the operations with their devices, how many each device has, and those that a GPU replica left to the CPU.

    :param operations: each may come again: as logged, then as it ran, perhaps folded into a constant.
    :param has_gpu: whether the replica was given GPUs.
    :param transfers: what moves between devices, as the partitions tell.
    """
    placed = _once(operations)
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
        "transfers": dict(transfers or {}),
        "on_cpu": {
            operation.name: why for operation in placed if has_gpu and ":CPU:" in operation.device.upper()
        },
    }  # fmt: skip


def missing_device(text: str) -> str:
    """Say which operation asked for a device that does not exist, and what exists; an empty text if none did.

    One that exists but cannot run the operation is told like that.
    """
    if match := _NO_KERNEL.search(text):
        return f"operation {match['operation']} asked for {_short(match['asked'])}, for which it has no kernel. {_SOFT}"
    for pattern in _MISSING:
        if match := pattern.search(text):
            return _say_missing(match.groupdict())
    return ""


def _say_missing(found: dict[str, str | None]) -> str:
    operation = f"operation {found['operation']}" if found.get("operation") else "an operation"
    available = [_short(device) for device in (found.get("available") or "").split(",") if device.strip()]
    exists = f"; there is {', '.join(dict.fromkeys(available))}" if available else ""
    asked = _short(found["asked"] or "")
    if asked in available:  # by an operation of its group
        return f"{operation} asked for {asked}, which not all operations that share its device can use. {_SOFT}"
    return f"{operation} asked for {asked}, which does not exist{exists}. {_SOFT}; {_MORE}"


def _short(device: str) -> str:
    """Return ``GPU:1``, with the task that it is of where that is another than the process itself."""
    match, task = _DEVICE.search(device.strip()), _TASK.search(device)
    if match is None:
        return device.strip()
    return f"{match[1].upper()}:{match[2]}" + (f" of {task[1]} {task[2] or 0}" if task else "")
