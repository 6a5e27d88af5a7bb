"""Programs of one session and two devices as users give them to the product: values, report, refusal, remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_tf.core.states import AttemptState, ExitCause
from tests.session_config.test_programs import FACTORS, ON_DEVICE, PRODUCT, SUM, TOWERS, TWO
from tests.supervisor.conftest import make_gang
from tests.supervisor.harness import Gang

__all__ = ["make_gang"]

IMPORT = "import tensorflow as tf\n"  # with api: v1 this is the API of TensorFlow 1
ANYWHERE = "a, b = factors()\nprint(tf.Session().run(tf.matmul(a, b, name='product')).tolist())\n"
MOVING = """
with tf.device('/cpu:1'):
    x = tf.random_normal([2, 2])
with tf.device('/cpu:0'):
    total = tf.reduce_sum(x)
tf.Session().run(total)
"""
MEMORY = {"gpu_options": {"allow_growth": True, "per_process_gpu_memory_fraction": 0.5}}
OPTIONS = "o = tf.Session()._config.gpu_options\nprint(o.allow_growth, o.per_process_gpu_memory_fraction)\n"


def on(device: str) -> str:
    return IMPORT + FACTORS + ON_DEVICE.replace("DEVICE", repr(device))


PROGRAMS: dict[str, tuple[dict[str, Any], str]] = {
    "anywhere": (TWO, IMPORT + FACTORS + ANYWHERE),
    "second": (TWO, on("/cpu:1")),
    "towers": (TWO, IMPORT + FACTORS + TOWERS.replace("DEVICES", "['/cpu:0', '/cpu:1']")),
    "moving": (TWO, IMPORT + MOVING),
    "missing": ({"allow_soft_placement": False}, on("/gpu:1")),
    "placed": ({"allow_soft_placement": True, "log_device_placement": True}, on("/gpu:1")),
    "memory": (MEMORY, IMPORT + OPTIONS),
}

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("no_processes_left")]


def placed(gang: Gang, number: int) -> tuple[dict[str, str], dict[str, Any]]:
    """Return operation -> device, and the whole report."""
    folder = gang.folder / f"replica-{number}" / "generation-1" / "attempt-1"
    report = json.loads((folder / "placement.json").read_text())
    return {row["name"]: row["device"][-5:] for row in report["operations"]}, report


def test_programs_compute_are_placed_and_are_refused_as_written(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(count=len(PROGRAMS), start_method="zygote")
    watches = {
        name: gang.start(source, replica=number, session_config=config, api="v1")
        for number, (name, (config, source)) in enumerate(PROGRAMS.items())
    }
    outcomes = {name: watch.end(180) for name, watch in watches.items()}
    output = {name: "".join(watch.lines) for name, watch in watches.items()}
    for name in ("anywhere", "second", "placed"):
        assert (outcomes[name].state, PRODUCT in output[name]) == (AttemptState.SUCCEEDED, True), output[name]
    assert SUM in output["towers"]
    assert placed(gang, 0)[0]["product"] == "CPU:0"
    assert placed(gang, 1)[0]["product"] == "CPU:1"
    assert "airflow_tf: placement of" in output["second"]
    where, report = placed(gang, 2)
    assert (where["MatMul"], where["MatMul_1"], where["total"]) == ("CPU:0", "CPU:1", "CPU:0")
    assert {row["type"] for row in report["operations"] if row["name"].startswith("MatMul")} == {"MatMul"}
    ((move, tensors),) = placed(gang, 3)[1]["transfers"].items()
    assert ("CPU:1 ->" in move, move.endswith("CPU:0"), tensors) == (True, True, 1)
    assert "1 tensors move between devices" in output["moving"]
    assert (outcomes["missing"].state, outcomes["missing"].cause) == (AttemptState.FAILED, ExitCause.USER_ERROR)
    said = outcomes["missing"].message
    for text in (
        "InvalidArgumentError",
        "asked for GPU:1, which does not exist; there is CPU:0",
        "allow_soft_placement: true",
    ):
        assert text in said
    assert "True 0.5" in output["memory"]
    assert placed(gang, 5)[1]["on_cpu"]["product"] == (
        "it asked for /device:GPU:1, but there is no GPU: allow_soft_placement put it here"
    )
    assert "fell to the CPU" in output["placed"]


IN_FUNCTION = (
    IMPORT
    + """
@tf.function
def inner(x):
    with tf.device(DEVICE): return tf.matmul(x, x, name='product')
@tf.function
def outer(x):
    return inner(x) + 1.0
print(CALL(tf.constant([[2.0]])).numpy().tolist())
"""
)
COPIED = IMPORT + "tf.constant([[2.0]]).gpu(1)\n"
HARD = {"allow_soft_placement": False, "device_count": {"CPU": 2}}
EXISTS = "asked for GPU:1, which does not exist; there is CPU:0, CPU:1. session_config.allow_soft_placement: true would"


def in_function(device: str, call: str = "inner") -> str:
    return IN_FUNCTION.replace("DEVICE", repr(device)).replace("CALL", call)


def test_functions_are_placed_and_every_form_of_a_missing_device_says_what_exists(
    make_gang: Callable[..., Gang],
) -> None:
    programs = {
        "function": (HARD, in_function("/gpu:1"), "operation product of __inference_inner_"),
        "nested": (HARD, in_function("/gpu:1", "outer"), "operation "),
        "copied": (HARD, COPIED, "an operation "),
        "placed": ({"log_device_placement": True, "device_count": {"CPU": 2}}, in_function("/cpu:1"), ""),
    }
    gang = make_gang(count=len(programs), start_method="zygote")
    watches = {
        name: gang.start(source, replica=number, session_config=config, api="tf2")
        for number, (name, (config, source, _)) in enumerate(programs.items())
    }
    outcomes = {name: watch.end(180) for name, watch in watches.items()}
    for name in ("function", "nested", "copied"):
        assert outcomes[name].state is AttemptState.FAILED
        assert programs[name][2] in outcomes[name].message
        assert EXISTS in outcomes[name].message
    assert outcomes["placed"].state is AttemptState.SUCCEEDED, watches["placed"].lines
    where, report = placed(gang, 3)
    assert where["product"] == "CPU:1"
    assert sum(report["transfers"].values()) > 0


def test_what_was_asked_and_applied_is_recorded(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(start_method="zygote")
    watch = gang.start(IMPORT + OPTIONS, session_config=MEMORY, api="v1")
    assert watch.end(120).state is AttemptState.SUCCEEDED
    folder = Path(gang.folder / "replica-0" / "generation-1" / "attempt-1")
    report = json.loads((folder / "session_config.json").read_text())
    assert report["asked"] == MEMORY
    assert set(report["applied"]) == {"gpu_options.allow_growth", "gpu_options.per_process_gpu_memory_fraction"}
