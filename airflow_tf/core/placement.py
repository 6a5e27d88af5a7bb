"""Where TensorFlow put a program's operations, and which device it asked for in vain.

The lines are those of TensorFlow 2.21 with ``log_device_placement``: a graph's whole placement at its session's first
run, an eager operation's at its first use. Each may be written twice, on standard output and in the log. Partitions of
graphs are lines of JSON that a replica writes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
_NOTE = r"(?:.*?\n(?:The operation (?P<asker>\S+) asks for it\. )?All available devices \[(?P<available>[^\]]*)\])?"
_MISSING_IN_FUNCTION = re.compile(
    r"Unable to find any devices for spec (?P<asked>[^\s\[]+)(?:.*?\[Op:(?P<operation>\w+)\])?" + _NOTE, re.DOTALL
)
_MISSING_COPY = re.compile(r"(?P<asked>[\w/:]*\b[A-Z]+:\d+) unknown device\." + _NOTE, re.DOTALL)
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


Kernels = Mapping[str, Sequence[Mapping[str, Sequence[str]]]]
"""Type of an operation -> its kernels for GPUs, each as attribute -> allowed types; none where it has none."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: its name in the graph (its type where eager), its type, and where it runs.

    :param device: empty where it is known from the program's graph alone, which may not run it as it is.
    :param asked: the device that the program asks for, empty if none; None where that is not known.
    :param types: attribute -> the types that it has there, as far as they are known.
    """

    name: str
    kind: str
    device: str
    asked: str | None = None
    types: Mapping[str, Sequence[str]] = field(default_factory=dict)


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
            operation = Operation(
                row["name"], row["type"], row.get("device", ""), row.get("asked"), row.get("types", {})
            )
        except (ValueError, KeyError, TypeError):
            continue
        if operation.kind in _RECEIVES and row.get("from"):
            transfers[f"{row['from']} -> {operation.device}"] += 1
        if operation.kind not in _OF_THE_RUNTIME:
            found.append(operation)
    return found, dict(transfers)


def placement_report(
    operations: Iterable[Operation],
    *,
    has_gpu: bool,
    kernels: Kernels | None = None,
    transfers: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return the operations with their devices, how many each device has, and which fell to the CPU, and why.

    Those have fallen that a replica with GPUs has on its CPU, and elsewhere those that asked for a GPU.

    :param operations: each may come again: as logged, then as it ran, perhaps folded into a constant.
    :param has_gpu: whether the replica was given GPUs.
    :param kernels: what TensorFlow has registered; None where that is not known, nothing where it sees no GPU.
    :param transfers: what moves between devices, as the partitions tell.
    """
    found = list(operations)
    placed = _once(operation for operation in found if operation.device)
    known = {one.name: one for one in found if one.asked is not None}
    sees_gpu = bool(kernels) or any(":GPU:" in operation.device.upper() for operation in placed)
    on_cpu = [operation for operation in placed if ":CPU:" in operation.device.upper()]
    told = [(operation, known.get(operation.name, operation)) for operation in on_cpu]
    fallen = [replace(operation, asked=one.asked, types=one.types) for operation, one in told]
    return {
        "operations": [
            {"name": operation.name, "type": operation.kind, "device": operation.device} for operation in placed
        ],
        "counts": dict(Counter(operation.device for operation in placed)),
        "transfers": dict(transfers or {}),
        "on_cpu": {
            operation.name: _why_on_cpu(operation, kernels, sees_gpu=sees_gpu)
            for operation in fallen
            if has_gpu or _is_gpu(operation.asked)
        },
    }


def _why_on_cpu(operation: Operation, kernels: Kernels | None, *, sees_gpu: bool) -> str:
    if operation.asked and ":CPU" in operation.asked.upper():
        return f"asked for by the program: {operation.asked}"
    if not sees_gpu:
        if _is_gpu(operation.asked):
            return f"it asked for {operation.asked}, but there is no GPU: allow_soft_placement put it here"
        if kernels is not None:
            return "TensorFlow sees no GPU in this process"
        return "no operation is on a GPU: the program assigns all to the CPU, or TensorFlow sees no GPU"
    registered = (kernels or {}).get(operation.kind)
    if lacking := _lack_of_kernels(operation, registered):
        return lacking
    causes = [
        "placed with others that are here (colocated)",
        "or TensorFlow's own choice (small integers, host memory)",
    ]
    if registered is None:
        causes.insert(0, "without a kernel for GPUs")
    if operation.asked is None:
        causes.insert(0, "asked for by the program")
    return ", ".join(causes)


def _is_gpu(asked: str | None) -> bool:
    return ":GPU" in (asked or "").upper()


def _lack_of_kernels(operation: Operation, registered: Sequence[Mapping[str, Sequence[str]]] | None) -> str:
    """Say that GPUs cannot run an operation; empty where they can, and where nothing is known: a function, say."""
    if registered is None or any(_takes(kernel, operation.types) for kernel in registered):
        return ""
    kind = operation.kind
    if not registered:
        return f"no GPU kernel is registered for {kind}"
    for name, types in operation.types.items():
        allowed = dict.fromkeys(found for kernel in registered for found in kernel.get(name, ()))
        refused = [found for found in types if found not in allowed]
        if refused and all(name in kernel for kernel in registered):
            return f"the GPU kernel of {kind} takes {name} in ({', '.join(allowed)}), not {', '.join(refused)}"
    together = ", ".join(f"{name} {' and '.join(types)}" for name, types in operation.types.items())
    return f"no GPU kernel of {kind} takes {together} together"


def _takes(kernel: Mapping[str, Sequence[str]], types: Mapping[str, Sequence[str]]) -> bool:
    return all(set(types.get(name, ())) <= set(allowed) for name, allowed in kernel.items())


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


@dataclass(frozen=True, slots=True)
class UnlistedDevice:
    """A missing device of an error that says neither what exists instead, nor more than the function that wants it."""

    asked: str
    function: str

    def is_asked_by(self, device: str) -> bool:
        """Tell whether an operation that asks for ``device`` asks for this one."""
        return bool(device) and _short(device) == _short(self.asked)


def unlisted_device(text: str) -> UnlistedDevice | None:
    """Return the device that an error tells of without those that exist, None where it is about something else."""
    for pattern in (_MISSING_IN_FUNCTION, _MISSING_COPY):
        if match := pattern.search(text):
            return UnlistedDevice(match["asked"], match.groupdict().get("operation") or "")
    return None


def note_devices(available: Iterable[str], asker: str) -> str:
    """Return what such an error lacks, as :func:`missing_device` reads it in the output.

    :param asker: the operation within the function; empty where it is not known.
    """
    return f"{f'The operation {asker} asks for it. ' if asker else ''}All available devices [{', '.join(available)}]"


def _say_missing(found: dict[str, str | None]) -> str:
    names = [name for name in (found.get("asker"), found.get("operation")) if name]
    operation = f"operation {' of '.join(names)}" if names else "an operation"
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
