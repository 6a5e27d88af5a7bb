"""Placement from the lines that TensorFlow 2.21 writes, and devices that were asked for in vain."""

from __future__ import annotations

import json

import pytest

from airflow_tf.core.placement import (
    Operation,
    UnlistedDevice,
    missing_device,
    note_devices,
    placement_report,
    read_partitions,
    read_placement,
    unlisted_device,
)

CPU, GPU = "/job:localhost/replica:0/task:0/device:CPU:0", "/job:localhost/replica:0/task:0/device:GPU:0"
LINES = [
    f"c: (MatMul): {GPU}",
    f"I0000 00:00:1796172848.300267   13742 placer.cc:162] c: (MatMul): {GPU}",
    f"tower_0/add-1: (AddV2): {CPU}",
    f"I0000 00:00:1 1 execute.cc:1775] Executing op _MklMatMul in device {CPU}",
    "Epoch 1: (loss): 0.5",
    "I0000 direct_session.cc:382] Device mapping: no known devices.",
]


def test_each_operation_is_reported_once_with_its_device():
    report = placement_report(read_placement(LINES), has_gpu=True)
    assert report["operations"] == [
        {"name": "c", "type": "MatMul", "device": GPU},
        {"name": "tower_0/add-1", "type": "AddV2", "device": CPU},
        {"name": "_MklMatMul", "type": "_MklMatMul", "device": CPU},
    ]
    assert report["counts"] == {GPU: 1, CPU: 2}
    assert set(report["on_cpu"]) == {"tower_0/add-1", "_MklMatMul"}


def test_without_a_gpu_nothing_fell_to_the_cpu_and_with_an_unused_one_all_did():
    placed = read_placement(LINES[2:])
    assert placement_report(placed, has_gpu=False)["on_cpu"] == {}
    assert "or TensorFlow sees no GPU" in placement_report(placed, has_gpu=True)["on_cpu"]["_MklMatMul"]
    said = placement_report(placed, has_gpu=True, kernels={})["on_cpu"]["_MklMatMul"]
    assert said == "TensorFlow sees no GPU in this process"


KERNELS = {
    "StringJoin": [],
    "MatMul": [{"T": ["float32"]}, {"T": ["float16"]}],
    "Cast": [{"SrcT": ["bool"], "DstT": ["int8"]}, {"SrcT": ["int8"], "DstT": ["bool"]}],
    "Identity": [{}],
    "_If": [{"Tout": ["float32"]}, {}],
}
CHOSEN = "placed with others that are here (colocated), or TensorFlow's own choice (small integers, host memory)"


@pytest.mark.parametrize(
    ("kind", "asked", "types", "why"),
    [
        ("MatMul", "/device:CPU:0", {"T": ["float32"]}, "asked for by the program: /device:CPU:0"),
        ("StringJoin", "", {}, "no GPU kernel is registered for StringJoin"),
        ("StringJoin", "/device:GPU:0", {}, "no GPU kernel is registered for StringJoin"),
        ("StringJoin", None, {}, "no GPU kernel is registered for StringJoin"),
        ("MatMul", "", {"T": ["int32"]}, "the GPU kernel of MatMul takes T in (float32, float16), not int32"),
        ("MatMul", "", {"T": ["float16"]}, CHOSEN),
        ("MatMul", None, {}, f"asked for by the program, {CHOSEN}"),
        ("Cast", "", {"SrcT": ["bool"], "DstT": ["bool"]}, "no GPU kernel of Cast takes SrcT bool, DstT bool together"),
        ("Identity", "", {"T": ["int32"]}, CHOSEN),
        ("_If", "", {"Tout": ["int32", "float32"]}, CHOSEN),
        ("__inference_step_8", None, {}, f"asked for by the program, without a kernel for GPUs, {CHOSEN}"),
    ],
)  # fmt: skip
def test_why_an_operation_is_on_the_cpu_beside_a_gpu(kind, asked, types, why):
    placed = [Operation("x", kind, CPU), Operation("x", kind, "", asked, types), Operation("y", "MatMul", GPU)]
    assert placement_report(placed, has_gpu=True, kernels=KERNELS)["on_cpu"] == {"x": why}


def test_what_asked_for_a_gpu_that_is_not_there_fell_to_the_cpu_on_a_replica_without_any():
    rows = [{"name": "x", "type": "MatMul", "asked": "/device:GPU:1"}, {"name": "y", "type": "Add", "device": CPU}]
    ran, _ = read_partitions(map(json.dumps, rows))
    report = placement_report([Operation("x", "MatMul", CPU), *ran], has_gpu=False)
    assert report["on_cpu"] == {
        "x": "it asked for /device:GPU:1, but there is no GPU: allow_soft_placement put it here"
    }
    assert report["counts"] == {CPU: 2}


IN_GRAPH = (
    "Cannot assign a device for operation c: {{node c}} was explicitly assigned to /device:GPU:1 but available devices "
    f"are [ {CPU}, {GPU} ]. Make sure the device specification refers to a valid device."
)
EAGER = (
    "InvalidArgumentError: Could not satisfy device specification '/job:localhost/replica:0/task:0/device:GPU:1'. "
    f"enable_soft_placement=0. Supported device types [CPU]. All available devices [{CPU}]. [Op:MatMul]"
)
COLOCATED = (
    "Cannot assign a device for operation v/Initializer: Could not satisfy explicit device specification '' because the "
    "node {{colocation_node v/Initializer}} was colocated with a group of nodes that required incompatible device "
    f"'/device:GPU:1'. All available devices [{CPU}]. \nColocation Debug Info:\n  v (VarHandleOp) /device:GPU:1"
)
NO_KERNEL = (
    "Cannot assign a device for operation s: Could not satisfy explicit device specification '/device:GPU:0' because no "
    "supported kernel for GPU devices is available.\nOp: StringJoin\nRegistered kernels:\n  device='CPU'"
)
OTHER_TASK = (
    "Could not satisfy device specification '/job:ps/replica:0/task:2/device:CPU:0'. enable_soft_placement=0. Supported "
    "device types [CPU]. All available devices [/job:worker/replica:0/task:1/device:CPU:0]. [Op:MatMul] name: "
)
FUNCTION = "InvalidArgumentError: Unable to find any devices for spec /device:GPU:1 [Op:__inference_g_8]"
COPY = "RuntimeError: /job:localhost/replica:0/task:0/device:GPU:1 unknown device."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (IN_GRAPH, "operation c asked for GPU:1, which does not exist; there is CPU:0, GPU:0."),
        (EAGER, "operation MatMul asked for GPU:1, which does not exist; there is CPU:0."),
        (FUNCTION, "operation __inference_g_8 asked for GPU:1, which does not exist."),
        (COLOCATED, "operation v/Initializer asked for GPU:1, which does not exist; there is CPU:0."),
        (
            COLOCATED.replace(f"[{CPU}]", f"[{CPU}, {GPU.replace('GPU:0', 'GPU:1')}]"),
            "operation v/Initializer asked for GPU:1, which not all operations that share its device can use.",
        ),
        (NO_KERNEL, "operation s asked for GPU:0, for which it has no kernel."),
        (OTHER_TASK, "operation MatMul asked for CPU:0 of ps 2, which does not exist; there is CPU:0 of worker 1."),
        (COPY, "an operation asked for GPU:1, which does not exist."),
        (
            f"{FUNCTION}\n{note_devices([CPU, GPU], 'product')}",
            "operation product of __inference_g_8 asked for GPU:1, which does not exist; there is CPU:0, GPU:0.",
        ),
        (
            f"{FUNCTION}\n{note_devices([CPU], '')}",
            "operation __inference_g_8 asked for GPU:1, which does not exist; there is CPU:0.",
        ),
        (f"{COPY}\n{note_devices([CPU], '')}", "an operation asked for GPU:1, which does not exist; there is CPU:0."),
    ],
)
def test_a_device_that_does_not_exist_is_named_with_what_does(text, said):
    found = missing_device(f"Traceback (most recent call last):\nGraph execution error:\n{text}\n\t [[c]]")
    assert found.startswith(said)
    assert "allow_soft_placement: true" in found


def test_errors_that_do_not_list_devices_are_known_from_those_that_do():
    assert unlisted_device(FUNCTION) == UnlistedDevice("/device:GPU:1", "__inference_g_8")
    assert unlisted_device(COPY) == UnlistedDevice(GPU.replace("GPU:0", "GPU:1"), "")
    assert [unlisted_device(text) for text in (IN_GRAPH, EAGER, COLOCATED, NO_KERNEL, OTHER_TASK)] == [None] * 5


def test_partitions_tell_what_runs_where_and_what_moves():
    rows = [
        {"name": "c", "type": "MatMul", "device": GPU},
        {"name": "c/_1", "type": "_Send", "device": GPU},
        {"name": "c/_2", "type": "_Recv", "device": CPU, "from": GPU},
        {"name": "total", "type": "AddN", "device": CPU},
    ]
    ran, transfers = read_partitions([*map(json.dumps, rows), '{"name": "cut o', "[]"])
    assert ran == [Operation("c", "MatMul", GPU), Operation("total", "AddN", CPU)]
    assert transfers == {f"{GPU} -> {CPU}": 1}
    report = placement_report([*read_placement(LINES), *ran], has_gpu=True, transfers=transfers)
    assert report["counts"] == {GPU: 1, CPU: 3}, "what was logged is not counted again"
    assert report["transfers"] == transfers


def test_other_errors_are_none_of_a_missing_device():
    assert not missing_device("InvalidArgumentError: Matrix size-incompatible: In[0]: [3,4], In[1]: [3,4] [Op:MatMul]")
