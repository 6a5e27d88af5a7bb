"""On a host with a GPU that nobody uses (``pytest -m gpu``): what a session config makes of its memory, by NVML.

Needs a TensorFlow built for GPUs; everywhere else these tests are not collected.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

CONTEXT_BYTES = 2 * 2**30
"""More than CUDA's own context and libraries take of a device, whatever a session allows."""

USED = """
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
def used():
    return pynvml.nvmlDeviceGetMemoryInfo(gpu).used
before = used()
PROGRAM
print("bytes", used() - before, pynvml.nvmlDeviceGetMemoryInfo(gpu).total)
"""
PROGRAMS = {
    "v1": "v1 = tf.compat.v1; v1.disable_eager_execution()\nsession = v1.Session()\nsession.run(tf.constant(1.0) + 1.0)",
    "tf2": "tf.constant(1.0) + 1.0",
}


def run(api: str, options: dict[str, Any], memory_bytes: int | None = None, program: str = "") -> tuple[int, int]:
    """Return how many bytes of the first GPU a program took, and how many there are."""
    source = USED.replace("PROGRAM", program or PROGRAMS[api])
    case = {"name": "x", "api": api, "config": {"gpu_options": options}, "memory_bytes": memory_bytes, "source": source}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("programs.py"))],
        input=json.dumps([case]), capture_output=True, text=True, check=True, timeout=300,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    )  # fmt: skip
    result = json.loads(done.stdout)["x"]
    assert result["rc"] == 0, result["output"]
    _, took, total = next(line for line in result["output"].splitlines() if line.startswith("bytes ")).split()
    return int(took), int(total)


@pytest.mark.parametrize("api", PROGRAMS)
def test_growth_takes_what_is_needed(api: str) -> None:
    took, _ = run(api, {"allow_growth": True})
    assert took < CONTEXT_BYTES


@pytest.mark.parametrize("api", PROGRAMS)
def test_a_fraction_is_what_is_taken(api: str) -> None:
    _, total = run(api, {"allow_growth": True})
    took, _ = run(api, {"per_process_gpu_memory_fraction": 0.5}, total)
    assert 0.5 * total - CONTEXT_BYTES / 4 < took < 0.5 * total + CONTEXT_BYTES


def test_two_programs_that_share_a_device_fit_beside_each_other() -> None:
    """As reported of TensorFlow: a fraction was not what a program took, and the second one found no memory."""
    _, total = run("v1", {"allow_growth": True})
    stays = PROGRAMS["v1"] + "\nimport time; time.sleep(20)"
    with ThreadPoolExecutor(2) as both:
        options = {"per_process_gpu_memory_fraction": 0.3}
        together = [both.submit(run, "v1", options, total, stays) for _ in range(2)]
        assert max(each.result()[0] for each in together) < 0.6 * total + 2 * CONTEXT_BYTES
