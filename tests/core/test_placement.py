"""Placement from the lines that TensorFlow 2.21 writes, and devices that were asked for in vain."""

from __future__ import annotations

import json

import pytest

from airflow_tf.core.placement import Operation, missing_device, placement_report, read_partitions, read_placement

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
    assert "sees no GPU" in placement_report(placed, has_gpu=True)["on_cpu"]["_MklMatMul"]


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
        ("RuntimeError: GPU:1 unknown device.", "an operation asked for GPU:1, which does not exist."),
    ],
)
def test_a_device_that_does_not_exist_is_named_with_what_does(text, said):
    found = missing_device(f"Traceback (most recent call last):\nGraph execution error:\n{text}\n\t [[c]]")
    assert found.startswith(said)
    assert "allow_soft_placement: true" in found


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
