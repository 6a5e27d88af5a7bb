"""Ask NVML about the GPUs of this host and print the answers, one JSON object per line.

Run as a process of its own, ``python -m airflow_tf.devices.nvml_child SECONDS KERNEL_LOG``: a sick driver makes any
call hang or crash. Nothing is judged here. The lines are ``{"absent": true}`` (no NVML library), ``{"failed": text}``
(NVML as a whole), ``{"key": …, "facts": …}`` (a device; again when more is known of it), ``{"done": true}`` (nothing is
left out).
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from airflow_tf.devices.kernel_log import bus_key, find_faults, read_kernel_log

LIBRARY = "libnvidia-ml.so.1"

REMEDIES = {
    9: ": load the kernel module ('modprobe nvidia') or restart the host",
    18: ": the driver was updated, but the kernel still runs the old module; reload it or restart the host",
}
"""What helps against a failure of NVML as a whole, by its code."""


@dataclass(slots=True)
class Facts:
    """What NVML says of one GPU or MIG slice; None where the device does not report it.

    ``processes`` (compute) and ``graphics`` are pairs of pid and used bytes; ``recovery_action`` is what the driver
    asks for, 0 for nothing; ``kernel_faults`` are errors of the kernel's log, ``lost`` and ``errors`` failed calls, in
    words.
    """

    index: int
    uuid: str = ""
    name: str = ""
    bus_id: str = ""
    has_no_slices: bool = False
    total_bytes: int | None = None
    free_bytes: int | None = None
    used_bytes: int | None = None
    utilization_percent: int | None = None
    processes: list[tuple[int, int | None]] | None = None
    graphics: list[tuple[int, int | None]] = field(default_factory=list)
    compute_mode: int | None = None
    uncorrected_errors: int | None = None
    remap_pending: bool = False
    remap_failed: bool = False
    retirement_pending: bool = False
    recovery_action: int | None = None
    kernel_faults: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Found:
    """A device of the listing, before it is looked at; a slice shares health and compute mode with its GPU."""

    key: str
    handle: object
    parent: object
    facts: Facts


class _Reader:
    """Calls of NVML whose failures become facts."""

    def __init__(self, nvml: ModuleType, kernel_faults: dict[str, list[str]]) -> None:
        self._nvml = nvml
        self._kernel_faults = kernel_faults
        self._not_reported = (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_NotFound,
            nvml.NVMLError_FunctionNotFound,
            nvml.NVMLError_VgpuEccNotSupported,
            nvml.NVMLLibraryMismatchError,
        )
        self._lost = (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired)

    def ask(self, facts: Facts, function: str, *arguments: object) -> Any:  # noqa: ANN401 (whatever NVML returns)
        """Return the answer of one function; None where the device has none, with the failure noted in ``facts``."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._not_reported:
            return None
        except UnicodeDecodeError as error:
            return error.object.decode(errors="replace")
        except self._lost as error:
            facts.lost.append(f"{function}: {error}")
        except self._nvml.NVMLError as error:
            facts.errors.append(f"{function}: {error}")
        return None

    def list_devices(self) -> Iterator[_Found]:
        """Yield every GPU, or its MIG slices in its place."""
        for index in range(self._nvml.nvmlDeviceGetCount()):
            facts = Facts(index)
            handle = self.ask(facts, "nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                yield _Found(str(index), None, None, facts)
                continue
            pci = self.ask(facts, "nvmlDeviceGetPciInfo_v3", handle)
            facts.bus_id = "" if pci is None else str(pci.busId)
            mode = self.ask(facts, "nvmlDeviceGetMigMode", handle)
            slices = list(self._list_slices(handle, facts)) if mode and mode[0] else []
            yield from slices
            if not slices or facts.errors or facts.lost:
                facts.has_no_slices = bool(mode and mode[0]) and not slices and not facts.errors
                yield self._identify(str(index), handle, handle, facts)

    def _list_slices(self, parent: object, parent_facts: Facts) -> Iterator[_Found]:
        count = self.ask(parent_facts, "nvmlDeviceGetMaxMigDeviceCount", parent) or 0
        for number in range(count):
            handle = self.ask(parent_facts, "nvmlDeviceGetMigDeviceHandleByIndex", parent, number)
            if handle is not None:  # not every place has a slice
                facts = Facts(parent_facts.index, bus_id=parent_facts.bus_id)
                yield self._identify(f"{parent_facts.index}-{number}", handle, parent, facts)

    def _identify(self, key: str, handle: object, parent: object, facts: Facts) -> _Found:
        facts.uuid = self.ask(facts, "nvmlDeviceGetUUID", handle) or ""
        facts.name = self.ask(facts, "nvmlDeviceGetName", handle) or ""
        return _Found(key, handle, parent, facts)

    def look(self, found: _Found) -> Facts:
        """Return all facts of a listed device."""
        facts = replace(found.facts, lost=list(found.facts.lost), errors=list(found.facts.errors))
        if found.handle is None:
            return facts
        self._look_at_load(facts, found.handle)
        self._look_at_health(facts, found.parent)
        return facts

    def _look_at_load(self, facts: Facts, handle: object) -> None:
        # Version 2 leaves out what the driver keeps for itself, up to a gigabyte on large cards.
        memory = self.ask(facts, "nvmlDeviceGetMemoryInfo", handle, self._nvml.nvmlMemory_v2) or self.ask(
            facts, "nvmlDeviceGetMemoryInfo", handle
        )
        if memory is not None and memory.total:
            facts.total_bytes, facts.free_bytes, facts.used_bytes = memory.total, memory.free, memory.used
        rates = self.ask(facts, "nvmlDeviceGetUtilizationRates", handle)
        facts.utilization_percent = None if rates is None else rates.gpu
        processes = self.ask(facts, "nvmlDeviceGetComputeRunningProcesses_v3", handle)
        if processes is None:  # a driver before 510
            processes = self.ask(facts, "nvmlDeviceGetComputeRunningProcesses_v2", handle)
        if processes is not None:
            facts.processes = [(process.pid, process.usedGpuMemory) for process in processes]
        # These only explain used memory: what goes wrong with them is no reason to distrust the device.
        graphics = self.ask(Facts(0), "nvmlDeviceGetGraphicsRunningProcesses_v3", handle) or ()
        facts.graphics = [(process.pid, process.usedGpuMemory) for process in graphics]

    def _look_at_health(self, facts: Facts, handle: object) -> None:
        nvml = self._nvml
        facts.compute_mode = self.ask(facts, "nvmlDeviceGetComputeMode", handle)
        facts.uncorrected_errors = self.ask(
            facts,
            "nvmlDeviceGetTotalEccErrors",
            handle,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        )
        remapped = self.ask(facts, "nvmlDeviceGetRemappedRows", handle)
        if remapped is not None:
            facts.remap_pending, facts.remap_failed = bool(remapped[2]), bool(remapped[3])
        facts.retirement_pending = bool(self.ask(facts, "nvmlDeviceGetRetiredPagesPendingStatus", handle))
        fields = self.ask(Facts(0), "nvmlDeviceGetFieldValues", handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if fields is not None and fields[0].nvmlReturn == nvml.NVML_SUCCESS:  # a driver of 2024 or later
            facts.recovery_action = int(fields[0].value.uiVal)
        facts.kernel_faults = self._kernel_faults.get(bus_key(facts.bus_id), [])


def main() -> None:
    """Print what NVML says; the process ends by itself after the given seconds, also when nobody waits for it."""
    signal.alarm(int(sys.argv[1]))
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        # Only a missing library means that this is no GPU host; one that cannot be loaded (or lacks another) is sick.
        is_absent = str(error).startswith(f"{LIBRARY}: cannot open shared object file: No such file")
        _say({"absent": True} if is_absent else {"failed": f"the NVML library cannot be loaded: {error}"})
        return
    try:
        import pynvml  # only hosts with the library pay for it
    except ImportError as error:
        _say({"failed": f"{error}; install it with pip install 'airflow-tf[gpu]'"})
        return
    try:
        pynvml.nvmlInit()
        _report(_Reader(pynvml, find_faults(read_kernel_log(Path(sys.argv[2])))), _say)
    except pynvml.NVMLError as error:
        _say({"failed": f"NVML: {error}{REMEDIES.get(error.value, '')}"})


def _report(reader: _Reader, say: Callable[[dict[str, Any]], None]) -> None:
    """Tell first which devices there are, so that a later hang has names."""
    listed = []
    for found in reader.list_devices():
        listed.append(found)
        say({"key": found.key, "facts": asdict(found.facts)})
    for found in listed:
        say({"key": found.key, "facts": asdict(reader.look(found))})
    say({"done": True})


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)  # noqa: T201 (the protocol of this process)


if __name__ == "__main__":
    main()
