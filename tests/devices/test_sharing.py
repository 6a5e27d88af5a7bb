"""Several replicas on one GPU: who shares it is no stranger on it, and everybody else is."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import sys

import pytest

from airflow_tf.core.devices import DeviceRequest, Health
from airflow_tf.core.errors import DevicesNeverFitError
from airflow_tf.core.identity import FENCE_VARIABLE, GangKey
from airflow_tf.core.ledger import Granted
from airflow_tf.devices.locks import DeviceLock
from airflow_tf.devices.registry import read_all
from airflow_tf.supervisor.acquire import acquire, take_devices
from airflow_tf.testing.nvml import Gpu
from tests.supervisor.harness import Gang, is_alive, wait_for

pytestmark = pytest.mark.usefixtures("no_processes_left")

MIB = 2**20


@pytest.fixture
def sharer(lock_dir):
    """A replica on half of GPU-1: (pid, the lock of its share)."""
    token = "s" * 48
    lock = DeviceLock(lock_dir, "GPU-1", 50)
    assert lock.try_acquire()
    lock.write_token(token)
    program = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    process = subprocess.Popen(program, env=os.environ | {FENCE_VARIABLE: token}, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    yield process.pid, lock
    process.kill()
    process.communicate()
    lock.release()


@pytest.mark.parametrize(
    ("own_bytes", "used_bytes", "strangers", "health", "reason"),
    [
        (4 * 2**30, 4 * 2**30 + 100 * MIB, [], Health.FREE, "50 % of it held by pid"),
        (4 * 2**30, 6 * 2**30, [], Health.BUSY, "2.0 GiB of its memory are used by a process that cannot be seen"),
        (4 * 2**30, 6 * 2**30, [(4194303, 2**30)], Health.BUSY, "used by pid 4194303 (gone, or of another container, 1.0 GiB)"),
        (None, 4 * 2**30, [], Health.BUSY, "the memory of those who share it is not reported"),
    ],
)  # fmt: skip
def test_a_sharer_s_process_and_memory_are_no_stranger_s(
    nvml, settings, sharer, own_bytes, used_bytes, strangers, health, reason
):
    pid, lock = sharer
    nvml.write([Gpu(uuid="GPU-1", processes=[(pid, own_bytes), *strangers], used_bytes=used_bytes)])
    (reading,) = read_all(settings, "gpu")
    assert reading.health is health
    assert reason in reading.reason
    lock.release()
    (without,) = read_all(settings, "gpu")
    assert without.health is Health.BUSY
    assert f"pid {pid} (user {getpass.getuser()}" in without.reason


def test_the_rest_of_a_shared_gpu_is_granted_to_a_share_and_not_as_a_whole(nvml, settings, sharer, reserve):
    pid, _ = sharer
    nvml.write([Gpu(uuid="GPU-1", processes=[(pid, 2**30)], used_bytes=2**30)])
    assert "GPU-1: 50 % of it held by pid" in str(reserve([0]))
    assert "GPU-1: 50 % of it held by pid" in str(reserve([0], share_percent=51))
    assert isinstance(reserve([0], share_percent=50), Granted)


def test_replicas_that_reserve_one_by_one_keep_to_the_limit_per_host(nvml, reserve):
    nvml.write([Gpu(uuid=f"GPU-{number}") for number in range(3)])
    assert isinstance(reserve([0], per_host=2), Granted)
    assert isinstance(reserve([1], per_host=2), Granted)
    assert isinstance(reserve([1], per_host=2), Granted), "it has its device"
    with pytest.raises(DevicesNeverFitError, match=r"wants 3 devices of host .* allows at most 2"):
        reserve([2], per_host=2)


def test_a_gpu_in_exclusive_mode_takes_no_shares(nvml, reserve):
    nvml.write([Gpu(uuid="GPU-1", compute_mode=3)])
    assert "its compute mode lets only one process on it" in str(reserve([0], share_percent=50))
    assert isinstance(reserve([0]), Granted)


def test_a_replica_sees_all_of_its_devices_and_a_list_of_ids_is_kept_to(nvml, settings, tmp_path):
    uuids = ("GPU-22222222-2222-3333-4444-555555555555", "MIG-11111111-1111-5111-8111-000000000001")
    nvml.write(
        [Gpu(uuid="GPU-1"), Gpu(uuid=uuids[0]), Gpu(uuid="GPU-3", slices=[Gpu(uuid="MIG-0"), Gpu(uuid=uuids[1])])]
    )
    gang = Gang(settings, tmp_path)
    assert isinstance(acquire(gang.ledger, settings, gang.key, DeviceRequest("gpu", 2, uuids=uuids), [0]), Granted)
    watch = gang.start("import os\nprint('sees', os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n")
    watch.end()
    assert watch.line("sees ") == ",".join(uuids)


def test_two_replicas_run_side_by_side_on_one_gpu(nvml, settings, tmp_path):
    nvml.write([Gpu(uuid="GPU-1")])
    gang = Gang(settings, tmp_path, count=2)
    granted = acquire(gang.ledger, settings, gang.key, DeviceRequest("gpu", share_percent=50), [0, 1])
    assert [member.share_percent for member in granted.members] == [50, 50]
    script = (
        "import os, time\nprint('on', os.environ['CUDA_VISIBLE_DEVICES'], os.getpid(), flush=True)\ntime.sleep(300)\n"
    )
    watches = [gang.start(script, replica=replica) for replica in (0, 1)]
    places, pids = zip(*(watch.line("on ").split() for watch in watches), strict=True)
    assert places == ("GPU-1", "GPU-1")
    lock = DeviceLock(settings.lock_dir, "GPU-1")
    assert lock.held_percent() == 100
    assert len({holder.token for holder in lock.holders()}) == 2
    nvml.write([Gpu(uuid="GPU-1", processes=[(int(pid), 2**30) for pid in pids], used_bytes=2 * 2**30)])
    watches[0].view.stop("this one")
    watches[0].end()
    wait_for(lambda: lock.held_percent() == 50, "the end of one share")
    nvml.write([Gpu(uuid="GPU-1", processes=[(int(pids[1]), 2**30)], used_bytes=2**30)])
    (reading,) = read_all(settings, "gpu")
    assert (reading.health, reading.held_percent) == (Health.FREE, 50)
    watches[1].view.stop("and this")
    watches[1].end()
    wait_for(lambda: gang.supervisor_pid() is None, "the end of the supervisor")
    assert not lock.is_held()


def test_a_dead_sharer_s_part_is_taken_back_and_the_other_goes_on(nvml, settings, tmp_path):
    """The sweep under the free part ends what the dead one left, not the replica that still shares."""
    nvml.write([Gpu(uuid="GPU-1")])
    gang = Gang(settings, tmp_path)
    assert isinstance(acquire(gang.ledger, settings, gang.key, DeviceRequest("gpu", share_percent=50), [0]), Granted)
    watch = gang.start("import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(300)\n")
    living = int(watch.line("pid "))
    nvml.write([Gpu(uuid="GPU-1", processes=[(living, 2**30)], used_bytes=2**30)])
    token = "d" * 48
    dead = DeviceLock(settings.lock_dir, "GPU-1", 25)
    assert dead.try_acquire()
    dead.write_token(token)
    program = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    orphan = subprocess.Popen(program, env=os.environ | {FENCE_VARIABLE: token}, stdout=subprocess.PIPE)
    assert orphan.stdout.readline() == b"up\n"
    dead.release()
    other = GangKey(gang.ledger.ledger_id, "other", "run", "train")
    granted = acquire(gang.ledger, settings, other, DeviceRequest("gpu", share_percent=50), [0])
    locks = take_devices(granted.members[0], settings)
    assert orphan.wait(timeout=20) == -signal.SIGKILL
    orphan.stdout.close()
    assert is_alive(living)
    assert DeviceLock(settings.lock_dir, "GPU-1").held_percent() == 100
    for lock in locks:
        lock.release()
    watch.view.stop("done")
    watch.end()
    wait_for(lambda: gang.supervisor_pid() is None, "the end of the supervisor")
