"""A simulated NVML for tests on machines without GPUs: a ``libnvidia-ml.so.1`` that answers from a file.

Whatever asks NVML (pynvml, ``airflow tf devices``, the device sensor) runs unchanged; the library is found through
``LD_LIBRARY_PATH`` by every process that is started with :attr:`SimulatedNvml.environment`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_tf.core.errors import AirflowTfError

LIBRARY = "libnvidia-ml.so.1"
_SOURCE = Path(__file__).with_name("libnvidia_ml.c")
_COMPILE_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with a function of NVML: ``error`` (a code), ``hang`` (seconds at most) or ``crash``.

    ``function`` is the exported name, versions included, or ``*`` for all.
    """

    word: str
    function: str
    value: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU or, within ``slices``, one MIG slice; None is what the device does not report.

    ``processes`` (compute) and ``graphics`` are pairs of pid and used bytes (None: not reported); ``remap`` are the
    four values of ``nvmlDeviceGetRemappedRows``; ``recovery_action`` is what the driver asks for, 0 for nothing.
    """

    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB"
    bus_id: str = ""
    total_bytes: int | None = 40 * 2**30
    used_bytes: int = 0
    reserved_bytes: int = 0
    utilization: int | None = 0
    compute_mode: int | None = 0
    processes: Sequence[tuple[int, int | None]] = ()
    graphics: Sequence[tuple[int, int | None]] = ()
    uncorrected_errors: int | None = None
    remap: tuple[int, int, int, int] | None = None
    retirement_pending: bool | None = None
    recovery_action: int | None = None
    slices: Sequence[Gpu] | None = None
    faults: Sequence[Fault] = field(default=())

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Gpu:
        """Return the GPU of a plain JSON object with these fields."""
        slices = row.get("slices")
        return cls(
            **row
            | {"faults": [Fault(*fault) for fault in row.get("faults", ())]}
            | {"slices": None if slices is None else [cls.from_json(part) for part in slices]}
        )


class SimulatedNvml:
    """A built library and the state that it answers from.

    :param folder: where both are kept.
    """

    def __init__(self, folder: Path) -> None:
        self.library = build(folder)
        self.state = folder / "nvml.state"
        self.write()

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the processes that shall find this library."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "AIRFLOW_TF_NVML_STATE": str(self.state)}

    @property
    def hangs(self) -> Path:
        """A file that appears when a call has begun to hang."""
        return self.state.with_name(f"{self.state.name}.hangs")

    def write(self, gpus: Sequence[Gpu] = (), faults: Sequence[Fault] = ()) -> None:
        """Replace the state at once, for running processes too: these GPUs, these faults of calls without a device."""
        new = self.state.with_name(f"{self.state.name}.new")
        lines = [*_fault_lines(faults), *(line for gpu in gpus for line in _lines(gpu, "gpu"))]
        new.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="surrogateescape")
        new.replace(self.state)


def build(folder: Path) -> Path:
    """Compile the library into ``folder``, once, and return its path.

    :raises AirflowTfError: if there is no C compiler or it fails.
    """
    target = folder / LIBRARY
    if target.exists():
        return target
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise AirflowTfError(
            "the simulated NVML cannot be built", "no C compiler on PATH", "Install one: apt-get install gcc libc6-dev."
        )
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{LIBRARY}.new"
    command = [compiler, "-shared", "-fPIC", "-O1", f"-Wl,-soname,{LIBRARY}", "-o", str(new), str(_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
    if done.returncode:
        raise AirflowTfError(
            "the simulated NVML cannot be built", done.stderr.strip(), "Look at the compiler's output."
        )
    return new.replace(target)


def _lines(gpu: Gpu, word: str) -> Iterator[str]:
    memory = None if gpu.total_bytes is None else f"{gpu.total_bytes} {gpu.used_bytes} {gpu.reserved_bytes}"
    facts = {
        "uuid": gpu.uuid,
        "name": gpu.name,
        "bus_id": gpu.bus_id or None,
        "memory": memory,
        "utilization": gpu.utilization,
        "compute_mode": gpu.compute_mode,
        "ecc": gpu.uncorrected_errors,
        "remap": None if gpu.remap is None else " ".join(map(str, gpu.remap)),
        "retirement": None if gpu.retirement_pending is None else int(gpu.retirement_pending),
        "recovery": gpu.recovery_action,
        "mig": None if gpu.slices is None else 1,
    }
    yield word
    yield from (f"{key} {value}" for key, value in facts.items() if value is not None)
    for kind, processes in (("process", gpu.processes), ("graphics", gpu.graphics)):
        yield from (f"{kind} {pid} {'' if used is None else used}" for pid, used in processes)
    yield from _fault_lines(gpu.faults)
    for part in gpu.slices or ():
        yield from _lines(part, "slice")


def _fault_lines(faults: Sequence[Fault]) -> Iterator[str]:
    return (f"{fault.word} {fault.function} {fault.value}" for fault in faults)
