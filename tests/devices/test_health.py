"""Devices that fail under a replica: found by looking, never given out again while they are sick."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

from airflow_tf.core.causes import NO_EVIDENCE
from airflow_tf.core.devices import Device, Health, Member, Reading
from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.devices.locks import DeviceLock
from airflow_tf.devices.registry import read_all
from airflow_tf.supervisor import quarantine
from airflow_tf.supervisor.attempt import Attempt, ReplicaRun
from airflow_tf.supervisor.health import DeviceWatch, damage, leftover, wait_memory_gone
from airflow_tf.supervisor.quarantine import Quarantine
from airflow_tf.testing.nvml import Gpu
from tests.supervisor.harness import Gang, wait_for

GPU = Device("GPU-1", "gpu", "A100", 0, visible="GPU-1")
OTHER = Device("GPU-2", "gpu", "A100", 1, visible="GPU-2")
BLIND = Device("unidentified-gpu-0", "gpu", "GPU", 0, visible="")
MEMBER = Member(1, 1, 0, (GPU,))
GIB = 2**30


@pytest.mark.parametrize(
    ("readings", "wrong"),
    [
        ([Reading(GPU, Health.BUSY, "used by pid 7")], {}),
        ([Reading(GPU, Health.UNHEALTHY, "2 uncorrectable ECC errors")], {"GPU-1": "2 uncorrectable ECC errors"}),
        (
            [Reading(OTHER, Health.FREE), Reading(BLIND, Health.UNHEALTHY, "lost (bus 1): GPU is lost")],
            {"GPU-1": "lost: NVML no longer lists it (lost (bus 1): GPU is lost)"},
        ),
        ([Reading(OTHER, Health.FREE)], {"GPU-1": "lost: NVML no longer lists it"}),
        ([Reading(OTHER, Health.UNKNOWN, "NVML did not answer")], {}),
        ([], {}),
    ],
)
def test_what_is_wrong_with_a_held_device(readings, wrong):
    assert damage([GPU], readings) == wrong
    assert damage([replace(GPU, kind="cpu")], readings) == {}


def test_memory_of_nobody_is_told_from_a_strangers_and_a_sharers(nvml, settings):
    def look():
        return read_all(settings, "gpu")

    nvml.write([Gpu(uuid="GPU-1", used_bytes=GIB)])
    assert "GPU-1: 1.0 GiB of its memory are used by a process that cannot be seen" in leftover(MEMBER, look())
    assert leftover(replace(MEMBER, share_percent=50), look()) == ""
    assert "1.0 GiB" in wait_memory_gone(MEMBER, look, deadline_seconds=0)
    nvml.write([Gpu(uuid="GPU-1", used_bytes=GIB, processes=[(1, GIB)])])
    assert leftover(MEMBER, look()) == ""
    nvml.write([Gpu(uuid="GPU-1")])
    assert wait_memory_gone(MEMBER, look, deadline_seconds=0) == ""


class Runs:
    """What a supervisor's replica on a GPU needs: a gang whose devices are reserved by ``reserve``."""

    def __init__(self, settings, tmp_path, reserve):
        self.gang = Gang(settings, tmp_path)
        self.reserve = reserve

    def start(self, script, **fields):
        self.reserve([0], kind="gpu")
        return self.gang.start(script, **fields)


@pytest.fixture
def runs(no_processes_left, settings, tmp_path, reserve, nvml):
    nvml.write([Gpu(uuid="GPU-1"), Gpu(uuid="GPU-2")])
    return Runs(settings, tmp_path, reserve)


def test_a_replica_whose_device_failed_ends_so_that_its_next_try_gets_another(runs, nvml, settings):
    script = "import os, time\nprint('on', os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\nopen('go', 'w')\nwhile os.path.exists('go'): time.sleep(0.05)\nraise SystemExit(1)"
    watch = runs.start(script, restarts=3)
    assert watch.line("on ") == "GPU-1"
    nvml.write([Gpu(uuid="GPU-1", uncorrected_errors=2), Gpu(uuid="GPU-2")])
    (runs.gang.folder / "replica-0" / "generation-1" / "attempt-1" / "go").unlink()
    outcome = watch.end()
    assert (outcome.state, outcome.cause) == (AttemptState.FAILED, ExitCause.DEVICE_LOST)
    assert "GPU-1: 2 uncorrectable ECC errors" in outcome.message
    assert runs.gang.ledger.replicas(runs.gang.key)[0].attempts == 1
    again = runs.start("import os\nprint('now on', os.environ['CUDA_VISIBLE_DEVICES'], flush=True)", try_number=2)
    assert again.line("now on ") == "GPU-2"
    assert again.end().state is AttemptState.SUCCEEDED


def test_a_device_that_only_the_program_saw_fail_is_offered_to_nobody_for_a_while(runs, nvml, settings):
    watch = runs.start("raise SystemExit('CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered')")
    assert watch.end().cause is ExitCause.DEVICE_LOST
    wait_for(lambda: runs.gang.ledger.member(runs.gang.key, 0) is None, "its release")
    again = runs.reserve([0], kind="gpu")
    assert [device.uuid for device in again.members[0].devices] == ["GPU-2"]


@pytest.mark.slow
def test_memory_left_by_nobody_fails_the_replica_and_keeps_its_device_locked(runs, nvml, settings):
    script = "import os, time\nprint('up', flush=True)\nopen('go', 'w')\nwhile os.path.exists('go'): time.sleep(0.05)\nraise SystemExit(1)"
    watch = runs.start(script)
    watch.line("up")
    nvml.write([Gpu(uuid="GPU-1", used_bytes=GIB), Gpu(uuid="GPU-2")])
    (runs.gang.folder / "replica-0" / "generation-1" / "attempt-1" / "go").unlink()
    outcome = watch.end(90)
    assert "Its devices stay locked: its processes are gone, but GPU-1: 1.0 GiB of its memory" in outcome.message
    assert DeviceLock(settings.lock_dir, "GPU-1").is_held()
    assert runs.gang.ledger.member(runs.gang.key, 0) is None  # the lock alone keeps it
    os.kill(runs.gang.supervisor_pid(), signal.SIGTERM)
    wait_for(lambda: not DeviceLock(settings.lock_dir, "GPU-1").is_held(), "the end of its supervisor")


def test_a_quarantined_device_is_given_back_when_nothing_is_left_on_it(settings, nvml, monkeypatch, tmp_path):
    monkeypatch.setattr(quarantine, "LOOK_SECONDS", 0.0)
    nvml.write([Gpu(uuid="GPU-1", used_bytes=GIB)])
    lock = DeviceLock(settings.lock_dir, "GPU-1")
    assert lock.try_acquire()
    kept = Quarantine(lambda: read_all(settings, "gpu"))
    launch = ReplicaLaunch(0, 1, "train.py", str(tmp_path), token="a token of nobody", folder=str(tmp_path))
    run = ReplicaRun(launch, lambda _: NO_EVIDENCE)
    run.leftover = "GPU-1: 1.0 GiB"
    kept.keep(MEMBER, [lock], run)
    kept.recheck()
    assert len(kept) == 1
    assert lock.is_held()
    nvml.write([Gpu(uuid="GPU-1")])
    kept.recheck()
    assert len(kept) == 0
    assert not lock.is_held()


def test_a_lost_device_ends_the_attempt_and_a_sick_one_is_said_once():
    sick, lost = Reading(GPU, Health.UNHEALTHY, "remap pending"), Reading(GPU, Health.UNHEALTHY, "lost: Xid 79")
    looks = [[sick], [sick], [lost]]
    notes = []
    gone = replace(MEMBER, replica=1)  # its replica has ended: not asked for
    watch = DeviceWatch({0: MEMBER, 1: gone}, lambda: looks.pop(0), look_seconds=0.01)
    running, ended = SimpleNamespace(has_ended=False), SimpleNamespace(has_ended=True)
    alarm = asyncio.run(watch(Attempt({1: ended, 0: running}, notes.append)))
    assert (alarm.replica, alarm.cause) == (0, ExitCause.DEVICE_LOST)
    assert alarm.message == "its device GPU-1 is lost: Xid 79"
    assert notes == ["device GPU-1 of replica 0 is not sound any more: remap pending"]
