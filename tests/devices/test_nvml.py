"""GPUs through pynvml and a simulated driver library: what is not surely free is not free, and says why.

Faults that others met, and the tests that stand for them here:

- several tasks get one GPU (TensorFlowOnSpark issue 280): test_lock_races, test_matching
- no GPU is free, and nobody says why or ends the wait (TensorFlowOnSpark 127): tests/sensors/test_devices
- GPUs given out by their number (cctools 2514), in another order than CUDA's (tensorflow 50300):
  test_each_replica_sees_only_its_own_gpu, test_gpus_are_named_by_uuid_whatever_the_order_of_their_buses
- names that break a parser (TensorFlowOnSpark gpu_info, nvgpu 12): test_odd_names_are_shown_…
- no process is listed in a container (nvidia-docker 179): test_findings, 257 MiB used
- a probe that fails, errs or hangs counts as no GPU (initialization-actions 1327): test_an_error_of_any_function_…,
  test_a_hanging_driver_…, test_auto_never_falls_…
- looking takes the memory of all GPUs (tensorflow 8021): test_looking_loads_no_gpu_library_…
- one task per GPU cannot be said (airflow 12519, distributed 1758, nextflow 5570): test_each_replica_sees_…
- what a dead run left keeps the GPU (TensorFlowOnSpark 120, pytorch 5736): test_the_gpu_of_a_killed_supervisor_…
- a GPU with memory errors is given out again and again (k8s-device-plugin 243): test_findings, uncorrected_errors
- memory is not reported (dra-driver-nvidia-gpu 1073): test_findings, total_bytes None
"""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, strategies
from hypothesis import settings as hypothesis_settings

from airflow_tf.cli.devices import device_rows
from airflow_tf.core.devices import Device, DeviceRequest, Health
from airflow_tf.core.errors import AirflowTfError, DevicesNeverFitError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted, Refused
from airflow_tf.devices import nvml as module
from airflow_tf.devices import nvml_call
from airflow_tf.devices.locks import DeviceLock
from airflow_tf.devices.nvml import NvmlProbe
from airflow_tf.devices.registry import read_all
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.supervisor.acquire import acquire
from airflow_tf.testing.nvml import Fault, Gpu, SimulatedNvml, build
from tests.supervisor.harness import Gang, wait_for

pytestmark = pytest.mark.usefixtures("no_processes_left")

CASES = [json.loads(line) for line in Path(__file__).with_name("nvidia.jsonl").read_text().splitlines()]
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"
MIB = 2**20
DECLARED = Device("npu-a", "static", "NPU", 0, visible="0")


@pytest.fixture(autouse=True)
def kernel_log(tmp_path, monkeypatch):
    """The kernel's log of this test's host: empty until written."""
    monkeypatch.setattr(module, "KERNEL_LOG", tmp_path / "kmsg")
    return tmp_path / "kmsg"


def read(deadline_seconds=60.0, lock_dir=None):
    with tempfile.TemporaryDirectory() as folder:
        return NvmlProbe(deadline_seconds, Path(folder) if lock_dir is None else lock_dir).read()


def read_one(nvml, **fields):
    nvml.write([Gpu(uuid="GPU-1", **fields)])
    (reading,) = read()
    return reading


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_known_cases(nvml, case):
    nvml.write([Gpu.from_json(row) for row in case["gpus"]], [Fault(*fault) for fault in case.get("faults", ())])
    readings = read()
    expected = case["expected"]
    assert [(reading.device.uuid, reading.health.value) for reading in readings] == [
        (row["uuid"], row["health"]) for row in expected
    ]
    for reading, row in zip(readings, expected, strict=True):
        assert row["reason"] in reading.reason
        assert bool(reading.reason) == (reading.health is not Health.FREE)


def test_a_free_gpu_is_told_with_all_that_is_known_of_it(nvml):
    reading = read_one(
        nvml, name="NVIDIA H100", total_bytes=80 * 2**30, used_bytes=MIB, reserved_bytes=700 * MIB, utilization=7
    )
    assert reading.device == Device("GPU-1", "gpu", "NVIDIA H100", 0, visible="GPU-1", memory_bytes=80 * 2**30)
    assert (reading.health, reading.reason) == (Health.FREE, "")
    assert reading.free_bytes == 80 * 2**30 - 701 * MIB
    assert reading.utilization_percent == 7


@pytest.mark.parametrize(
    ("fields", "health", "reason"),
    [
        ({"uncorrected_errors": 3}, Health.UNHEALTHY, "3 uncorrectable ECC errors"),
        ({"remap": (0, 1, 1, 0)}, Health.UNHEALTHY, "will be remapped when the GPU is reset"),
        ({"remap": (0, 1, 0, 1)}, Health.UNHEALTHY, "remapping of a bad memory row failed"),
        ({"retirement_pending": True}, Health.UNHEALTHY, "will be retired when the GPU is reset"),
        ({"retirement_pending": False, "uncorrected_errors": 0, "remap": (3, 0, 0, 0)}, Health.FREE, ""),
        ({"recovery_action": 0}, Health.FREE, ""),
        ({"recovery_action": 1}, Health.UNHEALTHY, "its driver asks for a reset of the GPU"),
        ({"recovery_action": 2}, Health.UNHEALTHY, "its driver asks for a restart of the host"),
        ({"recovery_action": 7}, Health.UNHEALTHY, "its driver asks for recovery action 7"),
        ({"graphics": [(4194303, 100 * MIB)], "used_bytes": 100 * MIB}, Health.FREE, ""),
        ({"graphics": [(4194303, None)], "used_bytes": 2**30}, Health.BUSY, "used by a process that cannot be seen"),
        ({"faults": [Fault("error", "nvmlDeviceGetGraphicsRunningProcesses_v3", 999)]}, Health.FREE, ""),
        ({"faults": [Fault("error", "nvmlDeviceGetFieldValues", 999)]}, Health.FREE, ""),
        ({"compute_mode": 2}, Health.UNHEALTHY, "prohibits processes"),
        ({"compute_mode": 3, "used_bytes": 74 * MIB}, Health.BUSY, "its compute mode is exclusive"),
        ({"used_bytes": 255 * MIB}, Health.FREE, ""),
        ({"used_bytes": 257 * MIB}, Health.BUSY, "257.0 MiB of its memory are used by a process that cannot be seen"),
        ({"total_bytes": None}, Health.FREE, ""),
        ({"total_bytes": None, "processes": [(4194303, None)]}, Health.BUSY, "pid 4194303 (gone, or of another container)"),
        ({"processes": [(4194303, 1)] * 6}, Health.BUSY, "and 2 more"),
        ({"slices": []}, Health.UNHEALTHY, "MIG is enabled on it, but it has no slice"),
        ({"faults": [Fault("error", "nvmlDeviceGetTotalEccErrors", 999)]}, Health.UNKNOWN, "nvmlDeviceGetTotalEccErrors: "),
        ({"faults": [Fault("error", "nvmlDeviceGetName", 16)]}, Health.UNHEALTHY, "lost"),
        ({"faults": [Fault("error", PROCESSES, 4)]}, Health.UNKNOWN, PROCESSES),
        ({"faults": [Fault("error", "nvmlDeviceGetMemoryInfo_v2", 13)]}, Health.FREE, ""),
    ],
)  # fmt: skip
def test_findings(nvml, fields, health, reason):
    reading = read_one(nvml, **fields)
    assert reading.health is health
    assert reason in reading.reason
    assert bool(reading.reason) == bool(reason)


def test_a_process_is_named_with_its_user(nvml):
    reading = read_one(nvml, processes=[(os.getpid(), 3 * 2**30)])
    assert reading.reason == (
        f"used by pid {os.getpid()} (user {getpass.getuser()}, {psutil.Process().name()}, 3.0 GiB)"
    )


def test_graphics_are_named_where_they_use_memory(nvml):
    reading = read_one(nvml, graphics=[(os.getpid(), 2**30)], used_bytes=2**30 + MIB)
    assert reading.health is Health.BUSY
    assert (
        f"1.0 GiB of its memory are used by graphics of pid {os.getpid()} (user {getpass.getuser()}" in reading.reason
    )


@pytest.mark.parametrize(
    ("recovery_action", "health", "reason"),
    [
        (
            None,
            Health.UNHEALTHY,
            "Xid 119: its system processor (GSP) did not answer (the kernel's log, since the driver",
        ),
        (1, Health.UNHEALTHY, "its driver asks for a reset of the GPU; Xid 119: its system processor"),
        (0, Health.FREE, ""),
    ],
)
def test_errors_of_the_kernel_s_log_count_unless_the_driver_says_that_they_are_past(
    nvml, kernel_log, recovery_action, health, reason
):
    kernel_log.write_text(
        "4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 119, pid=1, Timeout after 6s of waiting for RPC response\n"
    )
    nvml.write([
        Gpu(uuid="GPU-1", bus_id="00000000:3B:00.0", recovery_action=recovery_action),
        Gpu(uuid="GPU-2", bus_id="00000000:AF:00.0"),
    ])  # fmt: skip
    first, second = read()
    assert first.health is health
    assert reason in first.reason
    assert second.health is Health.FREE


@pytest.mark.parametrize(
    ("code", "remedy"), [(18, "the kernel still runs the old module; reload it"), (9, "modprobe nvidia")]
)
def test_a_driver_that_does_not_work_is_told_with_its_remedy(nvml, code, remedy):
    nvml.write([Gpu(uuid="GPU-1")], [Fault("error", "nvmlInitWithFlags", code)])
    (reading,) = read()
    assert reading.health is Health.UNKNOWN
    assert remedy in reading.reason


def test_looks_at_the_same_time_take_turns(nvml, lock_dir):
    nvml.write([Gpu(uuid="GPU-1")])
    found = []
    threads = [threading.Thread(target=lambda: found.extend(read(lock_dir=lock_dir))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reading.health for reading in found] == [Health.FREE] * 4
    assert not DeviceLock(lock_dir, nvml_call.LOCK).is_held()


def test_a_child_that_cannot_be_killed_is_joined_by_no_second_one(nvml, lock_dir, monkeypatch):
    """A process that sleeps in the driver ignores SIGKILL: here it is just not killed."""
    left = []
    monkeypatch.setattr(nvml_call, "_kill", lambda process: (left.append(process), (b"", b""))[1])
    monkeypatch.setattr(nvml_call, "_KILLED_SECONDS", 0.0)
    nvml.write([Gpu(uuid="GPU-1")], [Fault("hang", "nvmlInitWithFlags", 300)])
    assert "did not answer within 1 s" in read(1, lock_dir)[0].reason
    for _ in range(3):
        (reading,) = read(1, lock_dir)
        assert reading.health is Health.UNKNOWN
        assert reading.reason == f"an earlier look at NVML (pid {left[0].pid}) hangs in the driver and cannot be killed"
    assert len(left) == 1
    left[0].kill()
    left[0].communicate()
    nvml.write([Gpu(uuid="GPU-1")])
    assert read(60, lock_dir)[0].health is Health.FREE


def test_a_host_without_a_usable_lock_folder_is_looked_at_all_the_same(nvml, tmp_path):
    (tmp_path / "file").touch()
    nvml.write([Gpu(uuid="GPU-1")])
    assert read(60, tmp_path / "file" / "locks")[0].health is Health.FREE


@pytest.mark.parametrize(
    "function",
    ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode",
     "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetUtilizationRates", PROCESSES, "nvmlDeviceGetComputeMode", "nvmlDeviceGetRemappedRows"],
)  # fmt: skip
@pytest.mark.parametrize("code", [1, 4, 10, 17, 20, 999])
def test_an_error_of_any_function_is_unknown_never_free(nvml, function, code):
    nvml.write([Gpu(uuid="GPU-1"), Gpu(uuid="GPU-2")], [Fault("error", function, code)])
    readings = read()
    assert readings
    assert {reading.health for reading in readings} == {Health.UNKNOWN}
    assert all(reading.reason for reading in readings)


@pytest.mark.parametrize(
    ("function", "uuids"),
    [("nvmlInitWithFlags", ["unidentified-gpu-0"]), ("nvmlDeviceGetUtilizationRates", ["GPU-1", "GPU-2"])],
)
def test_a_hanging_driver_is_given_up_and_all_gpus_are_unknown(nvml, function, uuids):
    nvml.write([Gpu(uuid="GPU-1"), Gpu(uuid="GPU-2", faults=[])], [Fault("hang", function, 300)])
    readings = read(deadline_seconds=2)
    assert nvml.hangs.exists()
    assert [(reading.device.uuid, reading.health) for reading in readings] == [(uuid, Health.UNKNOWN) for uuid in uuids]
    assert {reading.reason for reading in readings} == {"NVML did not answer within 2 s"}


def test_the_asking_process_ends_by_itself_when_its_parent_was_killed(nvml):
    nvml.write([], [Fault("hang", "nvmlInitWithFlags", 300)])
    process = subprocess.Popen([sys.executable, "-m", nvml_call.CHILD, "1", "/dev/null"], stdout=subprocess.DEVNULL)
    assert process.wait(timeout=30) == -signal.SIGALRM


def test_a_gpu_that_vanishes_while_it_is_looked_at_is_lost_and_the_others_keep_their_names(nvml):
    first, second, third = (Gpu(uuid=f"GPU-{number}") for number in (1, 2, 3))
    nvml.write([replace(first, faults=[Fault("hang", "nvmlDeviceGetUtilizationRates", 60)]), second, third])
    found = []
    looking = threading.Thread(target=lambda: found.extend(read()))
    looking.start()
    wait_for(nvml.hangs.exists, "a call that hangs")
    nvml.write([first, third])
    looking.join()
    assert [(reading.device.uuid, reading.health.value) for reading in found] == [
        ("GPU-1", "free"),
        ("GPU-2", "unhealthy"),
        ("GPU-3", "free"),
    ]
    assert "GPU is lost" in found[1].reason
    later = {reading.device.uuid: reading.device.index for reading in read()}
    assert later == {"GPU-1": 0, "GPU-3": 1}, "renumbered, but named as before"


def test_gpus_are_named_by_uuid_whatever_the_order_of_their_buses(nvml):
    buses = ["00000000:C1:00.0", "00000000:07:00.0", "00000001:03:00.0"]
    nvml.write([Gpu(uuid=f"GPU-{bus[9:11]}", bus_id=bus) for bus in buses])
    devices = [reading.device for reading in read()]
    assert [device.visible for device in devices] == ["GPU-C1", "GPU-07", "GPU-03"]
    assert [device.index for device in devices] == [0, 1, 2]


def test_slices_replace_their_gpu_and_share_its_health_but_not_its_processes(nvml):
    slices = [Gpu(uuid="MIG-a", total_bytes=10 * 2**30), Gpu(uuid="MIG-b", processes=[(4194303, 1)])]
    sick = [Gpu(uuid="MIG-c")]
    nvml.write(
        [Gpu(uuid="GPU-1", slices=slices), Gpu(uuid="GPU-2", slices=sick, uncorrected_errors=1), Gpu(uuid="GPU-3")]
    )
    readings = read()
    assert [(reading.device.visible, reading.health.value) for reading in readings] == [
        ("MIG-a", "free"), ("MIG-b", "busy"), ("MIG-c", "unhealthy"), ("GPU-3", "free"),
    ]  # fmt: skip
    assert readings[0].device.memory_bytes == 10 * 2**30


def test_a_gpu_whose_slices_cannot_all_be_listed_is_shown_as_unknown(nvml):
    fault = Fault("error", "nvmlDeviceGetMigDeviceHandleByIndex", 4)
    nvml.write([Gpu(uuid="GPU-1", slices=[Gpu(uuid="MIG-a")], faults=[fault])])
    assert [(reading.device.uuid, reading.health) for reading in read()] == [("GPU-1", Health.UNKNOWN)]


def test_a_uuid_that_two_gpus_have_names_neither(nvml):
    nvml.write([Gpu(uuid="GPU-1"), Gpu(uuid="GPU-1"), Gpu(uuid="GPU-2")])
    assert [(reading.device.uuid, reading.health.value) for reading in read()] == [
        ("unidentified-gpu-0", "unknown"), ("unidentified-gpu-1", "unknown"), ("GPU-2", "free"),
    ]  # fmt: skip


def test_slices_without_a_uuid_are_counted_one_by_one(nvml, reserve):
    fault = Fault("error", "nvmlDeviceGetUUID", 999)
    nvml.write([Gpu(uuid="GPU-1", slices=[Gpu(uuid="MIG-a", faults=[fault]), Gpu(uuid="MIG-b", faults=[fault])])])
    assert [reading.device.uuid for reading in read()] == ["unidentified-gpu-0-0", "unidentified-gpu-0-1"]
    assert isinstance(reserve([0]), Refused)


TEXT = strategies.text(strategies.characters(blacklist_characters="\n\x00", blacklist_categories=["Cs"]), max_size=120)


@given(uuid=TEXT, name=TEXT)
@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_odd_names_are_shown_and_an_odd_uuid_is_never_given_away(nvml, uuid, name):
    nvml.write([
        Gpu(uuid=uuid, name=name), Gpu(uuid="GPU-2", name=name), Gpu(uuid="GPU-3", name=name, processes=[(1, 2**30)])
    ])  # fmt: skip
    first, second, third = read()
    assert second.health is Health.FREE
    assert third.health is Health.BUSY
    assert second.device.name.isprintable()
    assert second.device.name
    if first.health is Health.FREE:
        assert first.device.uuid == first.device.visible == uuid
        assert "," not in uuid
        assert uuid.isascii()
        assert uuid.isprintable()
    else:
        assert first.is_blind
        assert first.device.uuid == "unidentified-gpu-0"


def test_auto_takes_gpus_before_declared_devices_and_cpu_slots(nvml, settings):
    nvml.write([Gpu(uuid="GPU-1")])
    for here in (settings, replace(settings, static_devices=(DECLARED,))):
        assert [reading.device.uuid for reading in read_all(here, "auto")] == ["GPU-1"]
        assert [reading.device.uuid for reading in read_all(here, "gpu")] == ["GPU-1"]


def test_auto_never_falls_from_gpus_that_are_all_lost(nvml, settings, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "DRIVER_GPUS", tmp_path / "gpus")
    (tmp_path / "gpus" / "0000:b3:00.0").mkdir(parents=True)
    (reading,) = read_all(settings, "auto")
    assert (reading.device.kind, reading.health) == ("gpu", Health.UNKNOWN)
    assert reading.reason == "the driver has it, but NVML does not list it (bus 0000:b3:00.0)"


def test_auto_looks_further_where_nvml_has_no_gpu(nvml, settings):
    assert [reading.device.kind for reading in read_all(settings, "auto")] == ["cpu", "cpu"]
    assert [r.device.kind for r in read_all(replace(settings, static_devices=(DECLARED,)), "auto")] == ["static"]
    assert read_all(settings, "gpu") == []


@pytest.mark.parametrize(
    "fault", [Fault("error", "nvmlInitWithFlags", 9), Fault("crash", "*"), Fault("hang", "*", 300)]
)
def test_auto_never_falls_from_gpus_that_cannot_be_looked_at(nvml, settings, monkeypatch, fault):
    monkeypatch.setattr(module, "DEADLINE_SECONDS", 2.0)
    nvml.write([Gpu(uuid="GPU-1")], [fault])
    (reading,) = read_all(settings, "auto")
    assert (reading.device.kind, reading.health) == ("gpu", Health.UNKNOWN)
    assert reading.is_blind


def test_a_library_that_cannot_be_loaded_is_not_a_host_without_gpus(nvml, settings):
    nvml.library.unlink()
    nvml.library.write_bytes(b"no library")
    (reading,) = read_all(settings, "auto")
    assert reading.health is Health.UNKNOWN
    assert "cannot be loaded" in reading.reason


def test_without_pynvml_the_remedy_is_named(nvml, tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text("raise ImportError('No module named pynvml')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (reading,) = read()
    assert (reading.health, "airflow-tf[gpu]" in reading.reason) == (Health.UNKNOWN, True)


def test_the_current_folder_is_not_searched(nvml, tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    assert read_one(nvml).health is Health.FREE


def test_looking_loads_no_gpu_library_into_the_process_that_asks(nvml, settings):
    nvml.write([Gpu(uuid="GPU-1")])
    program = (
        "import json, sys\nfrom airflow_tf.core.settings import Settings\nfrom airflow_tf.devices.registry import read_all\n"
        "assert read_all(Settings.from_json(json.loads(sys.argv[1])), 'gpu')[0].health == 'free'\n"
        "maps = open('/proc/self/maps').read()\n"
        "print([name for name in ('tensorflow', 'pynvml') if name in sys.modules], 'libnvidia' in maps, 'libcuda' in maps)\n"
    )
    command = [sys.executable, "-c", program, json.dumps(settings.to_json())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False False"


def test_a_locked_gpu_is_busy(nvml, settings):
    nvml.write([Gpu(uuid="GPU-1")])
    lock = DeviceLock(settings.lock_dir, "GPU-1")
    assert lock.try_acquire()
    (reading,) = read_all(settings, "gpu")
    lock.release()
    assert reading.health is Health.BUSY


def test_a_request_waits_for_gpus_that_cannot_be_looked_at_and_says_why(nvml, reserve):
    nvml.write([Gpu(uuid="GPU-1"), Gpu(uuid="GPU-2")], [Fault("error", "nvmlInitWithFlags", 18)])
    refused = reserve([0, 1])
    assert isinstance(refused, Refused)
    assert "unidentified-gpu-0 unknown: NVML: " in str(refused)
    assert "version mismatch" in str(refused)
    nvml.write([Gpu(uuid="GPU-1"), Gpu(uuid="GPU-2")])
    assert isinstance(reserve([0, 1]), Granted)


def test_a_request_for_more_gpus_than_there_are_fails_at_once(nvml, reserve):
    nvml.write([Gpu(uuid="GPU-1")])
    with pytest.raises(DevicesNeverFitError, match="wants 2 devices of kind gpu"):
        reserve([0, 1])


def test_only_what_is_surely_free_is_reserved(nvml, reserve):
    nvml.write([
        Gpu(uuid="GPU-busy", processes=[(4194303, 1)]),
        Gpu(uuid="GPU-sick", uncorrected_errors=1),
        Gpu(uuid="GPU-odd", faults=[Fault("error", PROCESSES, 999)]),
        Gpu(uuid="GPU-free"),
    ])  # fmt: skip
    refused = reserve([0, 1])
    assert isinstance(refused, Refused)
    for text in ("GPU-busy busy: used by pid", "GPU-sick unhealthy: 1 uncorrectable", "GPU-odd unknown: "):
        assert text in str(refused)
    granted = reserve([0])
    assert [device.uuid for device in granted.members[0].devices] == ["GPU-free"]


def test_a_gpu_that_vanishes_while_it_is_held_is_lost_and_waited_for(nvml, settings, reserve):
    nvml.write([Gpu(uuid="GPU-1"), Gpu(uuid="GPU-2")])
    ledger = open_ledger(settings)
    holder = GangKey(ledger.ledger_id, "holder", "run", "train")
    granted = acquire(ledger, settings, holder, DeviceRequest("gpu", uuids=("GPU-2",)), [0])
    nvml.write([Gpu(uuid="GPU-1")])
    assert "GPU-2 held by holder / run / train[0]" in str(reserve([0], uuids=("GPU-2",)))
    (vanished,) = [row for row in device_rows(LedgerReader(ledger), settings) if row["device"] == "GPU-2"]
    assert (vanished["state"], vanished["reason"].partition(":")[0]) == ("unhealthy", "lost")
    ledger.release(granted.members[0])
    assert "GPU-2 unhealthy: lost: its host no longer lists it" in str(reserve([0], uuids=("GPU-2",)))
    nvml.write([Gpu(uuid="GPU-1"), Gpu(uuid="GPU-2")])
    assert isinstance(reserve([0], uuids=("GPU-2",)), Granted)
    ledger.close()


def test_each_replica_sees_only_its_own_gpu(nvml, settings, tmp_path):
    uuids = ["GPU-11111111-2222-3333-4444-555555555555", "MIG-11111111-1111-5111-8111-000000000001"]
    nvml.write([Gpu(uuid=uuids[0]), Gpu(uuid="GPU-2", slices=[Gpu(uuid=uuids[1])])])
    gang = Gang(settings, tmp_path, count=2)
    granted = acquire(gang.ledger, settings, gang.key, DeviceRequest("auto"), [0, 1])
    assert isinstance(granted, Granted)
    script = (
        "import os\nprint('sees', os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'], flush=True)\n"
    )
    watches = [gang.start(script, replica=replica) for replica in (0, 1)]
    for watch in watches:
        watch.end()
    seen = [watch.line("sees ") for watch in watches]
    assert seen == [f"{uuid} PCI_BUS_ID" for uuid in uuids]
    wait_for(lambda: gang.supervisor_pid() is None, "the end of the supervisor")
    assert {reading.health for reading in read_all(settings, "gpu")} == {Health.FREE}


def test_the_gpu_of_a_killed_supervisor_is_given_on_at_once(nvml, settings, tmp_path):
    """What its replica left on the GPU is swept before the GPU is judged."""
    nvml.write([Gpu(uuid="GPU-1")])
    gang = Gang(settings, tmp_path)
    assert isinstance(acquire(gang.ledger, settings, gang.key, DeviceRequest("gpu"), [0]), Granted)
    watch = gang.start("import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(300)\n")
    pid = int(watch.line("pid "))
    nvml.write([Gpu(uuid="GPU-1", processes=[(pid, 2**30)])])
    other = GangKey(gang.ledger.ledger_id, "other", "run", "train")
    refused = acquire(gang.ledger, settings, other, DeviceRequest("gpu"), [0])
    assert isinstance(refused, Refused)
    assert "GPU-1 held by dag / run / train[0]" in str(refused)
    os.kill(gang.supervisor_pid(), signal.SIGKILL)
    with pytest.raises(AirflowTfError):
        watch.end()
    nvml.write([Gpu(uuid="GPU-1", used_bytes=2**30)])
    left = acquire(gang.ledger, settings, other, DeviceRequest("gpu"), [0])
    assert "1.0 GiB of its memory are used by a process that cannot be seen" in str(left), "not before it is free"
    nvml.write([Gpu(uuid="GPU-1")])
    assert isinstance(acquire(gang.ledger, settings, other, DeviceRequest("gpu"), [0]), Granted)


def test_a_second_build_takes_the_first_one_s_library(tmp_path):
    first = build(tmp_path)
    stamp = first.stat().st_mtime_ns
    assert build(tmp_path) == first
    assert first.stat().st_mtime_ns == stamp


def test_without_a_compiler_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AirflowTfError, match="apt-get install gcc"):
        SimulatedNvml(tmp_path / "nvml")
