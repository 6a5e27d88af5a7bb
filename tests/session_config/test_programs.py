"""Programs of one session and two devices in real TensorFlow: what they compute, where, and what a missing device says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.core.placement import missing_device, read_placement
from airflow_tf.supervisor.placement import write_placement

pytestmark = pytest.mark.tensorflow

PRODUCT = "[[88.0, 94.0, 96.0], [150.0, 170.0, 180.0], [150.0, 170.0, 180.0]]"
SUM = "[[176.0, 188.0, 192.0], [300.0, 340.0, 360.0], [300.0, 340.0, 360.0]]"
V1 = "tf = tf.compat.v1; tf.disable_eager_execution()\n"
FACTORS = """
def factors():
    a = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0], shape=[3, 4], name='a')
    b = tf.constant([2.0, 4.0, 6.0, 8.0, 10.0], shape=[4, 3], name='b')
    return a, b
"""
ON_DEVICE = """
with tf.device(DEVICE):
    a, b = factors()
    c = tf.matmul(a, b, name='product')
print(tf.Session().run(c).tolist())
"""
TOWERS = """
towers = []
for device in DEVICES:
    with tf.device(device):
        a, b = factors()
        towers.append(tf.matmul(a, b))
with tf.device('/cpu:0'):
    total = tf.add_n(towers, name='total')
print(tf.Session().run(total).tolist())
"""
EAGER = "a, b = tf.ones((1, 1)), tf.ones((1, 1))\nwith tf.device('/gpu:1'): tf.matmul(a, b)"
FUNCTION = "@tf.function\ndef g():\n    with tf.device('/gpu:1'): return tf.matmul([[1.0]], [[2.0]])\ng()"
KERNELS = """
import __main__, pathlib, tempfile
from airflow_tf.runtime import kernels
with tempfile.TemporaryDirectory() as folder:
    kernels.record(pathlib.Path(folder))
    print(pathlib.Path(folder, 'kernels.json').read_text())
    __main__.pretend_gpus(1)
    kernels.record(pathlib.Path(folder))
    print(pathlib.Path(folder, 'kernels.json').read_text())
"""
TWO = {"device_count": {"CPU": 2}, "log_device_placement": True}


def on(device):
    return V1 + FACTORS + ON_DEVICE.replace("DEVICE", repr(device))


CASES = {
    "first": ("v1", TWO, on("/cpu:0")),
    "second": ("v1", TWO, on("/cpu:1")),
    "towers": ("v1", TWO, V1 + FACTORS + TOWERS.replace("DEVICES", "['/cpu:0', '/cpu:1']")),
    "missing": ("v1", {"allow_soft_placement": False}, on("/gpu:1")),
    "missing, placed": ("v1", {"allow_soft_placement": True}, on("/gpu:1")),
    "missing, eager": ("tf2", {"allow_soft_placement": False}, EAGER),
    "missing, function": ("tf2", {"allow_soft_placement": False}, FUNCTION),
    "kernels": ("tf2", {}, KERNELS),
    "memory": (
        "v1", {"gpu_options": {"allow_growth": True, "per_process_gpu_memory_fraction": 0.5}},
        V1 + "o = tf.Session()._config.gpu_options; print(o.allow_growth, o.per_process_gpu_memory_fraction)",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def results():
    cases = [
        {"name": name, "api": api, "config": config, "source": source} for name, (api, config, source) in CASES.items()
    ]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("programs.py"))],
        input=json.dumps(cases), capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(("name", "device"), [("first", "CPU:0"), ("second", "CPU:1")])
def test_a_product_is_right_and_its_device_is_reported(results, name, device):
    output = results[name]["output"]
    assert PRODUCT in output
    (product,) = [operation for operation in read_placement(output.splitlines()) if operation.kind == "MatMul"]
    assert product.name == "product"
    assert product.device.endswith(f"device:{device}")


def test_towers_on_two_devices_are_added_up_on_the_first(results):
    output = results["towers"]["output"]
    assert SUM in output
    placed = {operation.name: operation.device[-5:] for operation in read_placement(output.splitlines())}
    assert (placed["MatMul"], placed["MatMul_1"], placed["total"]) == ("CPU:0", "CPU:1", "CPU:0")


@pytest.mark.parametrize(
    ("name", "operation", "available"),
    [
        ("missing", "operation ", "there is CPU:0."),
        ("missing, eager", "operation MatMul", "there is CPU:0."),
        ("missing, function", "operation __inference_g", "."),
    ],
)
def test_a_device_that_does_not_exist_fails_and_is_explained(results, name, operation, available):
    assert results[name]["rc"] == 1
    assert "InvalidArgumentError" in results[name]["output"]
    said = missing_device(results[name]["output"])
    assert said.startswith(operation)
    assert " asked for GPU:1, which does not exist" in said
    assert available in said


def test_with_soft_placement_the_same_program_succeeds(results):
    assert PRODUCT in results["missing, placed"]["output"]


def test_growth_and_fraction_are_in_the_config_of_the_session(results):
    assert "True 0.5" in results["memory"]["output"]


def test_kernels_are_told_where_tensorflow_sees_a_gpu(results):
    """A build for CPUs has a few of them, too."""
    without, kernels = [json.loads(line) for line in results["kernels"]["output"].splitlines() if line.startswith("{")]
    assert without == {}
    assert (kernels["StringJoin"], kernels["MatMul"]) == ([], [])
    assert {"dtype": ["int32"]} in kernels["Const"]
    assert {"T": ["float16"]} in kernels["Identity"]


def test_the_report_says_which_kernel_a_gpu_lacks(tmp_path):
    gpu, cpu = (f"/job:localhost/replica:0/task:0/device:{device}:0" for device in ("GPU", "CPU"))
    (tmp_path / "output.log").write_text(f"joined: (StringJoin): {cpu}\nproduct: (MatMul): {gpu}\n")
    (tmp_path / "kernels.json").write_text('{"StringJoin":[],"MatMul":[{"T":["float32"]}]}')
    launch = ReplicaLaunch(
        replica=0, count=1, entrypoint="m:f", code_folder="", folder=str(tmp_path), session_config=TWO,
        visible_devices="0",
    )  # fmt: skip
    write_placement(launch)
    report = json.loads((tmp_path / "placement.json").read_text())
    assert report["on_cpu"] == {"joined": "no GPU kernel is registered for StringJoin"}
    assert not (tmp_path / "kernels.json").exists(), "it is of use for the report alone"


def test_the_report_lies_beside_the_output(results, tmp_path):
    (tmp_path / "output.log").write_text(results["second"]["output"])
    launch = ReplicaLaunch(
        replica=0, count=1, entrypoint="m:f", code_folder="", folder=str(tmp_path), session_config=TWO
    )
    write_placement(launch)
    report = json.loads((tmp_path / "placement.json").read_text())
    (product,) = [operation for operation in report["operations"] if operation["name"] == "product"]
    assert (product["type"], product["device"][-5:]) == ("MatMul", "CPU:1")
    assert report["on_cpu"] == {}
    assert "airflow_tf: placement of" in (tmp_path / "output.log").read_text()


def test_nothing_is_reported_where_placement_was_not_logged(tmp_path):
    write_placement(ReplicaLaunch(replica=0, count=1, entrypoint="m:f", code_folder="", folder=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []
