"""Each kind reads its devices; a locked device is busy and says by whom; unknown kinds are refused."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from airflow_tf.core.devices import Device, Health
from airflow_tf.core.errors import DeclarationError
from airflow_tf.devices.locks import DeviceLock
from airflow_tf.devices.registry import KINDS, probes, read_all
from airflow_tf.testing.nvml import Gpu

DECLARED = (
    Device("npu-a", "static", "NPU", 0, visible="0", memory_bytes=2**34),
    Device("npu-b", "static", "NPU", 1, visible="1"),
)


@pytest.fixture
def declared(settings):
    return replace(settings, static_devices=DECLARED)


def test_every_probe_names_its_kind_and_reads_devices_of_it(declared, nvml):
    nvml.write([Gpu(uuid="GPU-a"), Gpu(uuid="GPU-b")])
    found = probes(declared)
    assert [probe.kind for probe in found] == list(KINDS)
    for probe in found:
        readings = probe.read()
        assert len(readings) == 2
        assert {reading.device.kind for reading in readings} == {probe.kind}
        assert {reading.health for reading in readings} == {Health.FREE}
        assert len({reading.device.uuid for reading in readings}) == 2


def test_auto_is_static_where_devices_are_declared_else_cpu(settings, declared):
    assert [reading.device.uuid for reading in read_all(declared, "auto")] == ["npu-a", "npu-b"]
    assert [reading.device.uuid for reading in read_all(settings, "auto")] == ["cpu-0", "cpu-1"]
    assert [reading.device.visible for reading in read_all(settings, "cpu")] == ["-1", "-1"]


def test_without_an_nvml_library_there_is_no_gpu(settings):
    assert read_all(settings, "gpu") == []


def test_an_unknown_kind_is_refused_with_the_known_ones(settings):
    with pytest.raises(DeclarationError, match="auto, gpu, static, cpu"):
        read_all(settings, "tpu")


def test_a_locked_device_is_busy_and_names_the_holder(settings):
    lock = DeviceLock(settings.lock_dir, "cpu-1")
    assert lock.try_acquire()
    unnamed = read_all(settings, "cpu")
    lock.write_token("t" * 48)
    named = read_all(settings, "cpu")
    lock.release()
    assert [reading.health for reading in named] == [Health.FREE, Health.BUSY]
    assert f"held by pid {os.getpid()} (uid {os.getuid()})" in named[1].reason
    assert "unknown process" in unnamed[1].reason
    assert {reading.health for reading in read_all(settings, "cpu")} == {Health.FREE}


def test_a_lock_that_cannot_be_looked_at_is_unknown_not_free(settings):
    (settings.lock_dir / "cpu-0.lock").symlink_to("nowhere")
    reading = read_all(settings, "cpu")[0]
    assert reading.health is Health.UNKNOWN
    assert "cannot be looked at" in reading.reason
