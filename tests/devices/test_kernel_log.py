"""Errors of GPUs in the kernel's log: which GPU, which errors count, and since when."""

from __future__ import annotations

import os
import threading

import pytest

from airflow_tf.devices.kernel_log import bus_key, find_faults, read_kernel_log

XID = "4,1234,5678901,-;NVRM: Xid (PCI:{bus}): {number}, pid='<unknown>', name=<unknown>, words of the driver\n"
FALLEN = "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus and is not responding to commands.\n"
LOADED = "6,1,1,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07\n"


def xid(number, bus="0000:3b:00"):
    return XID.format(bus=bus, number=number)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", {}),
        (xid(79), {"0:3b:0": ["Xid 79: it fell off the bus"]}),
        (xid(13) + xid(31) + xid(43) + xid(63) + xid(94), {}),
        (xid(48) + xid(48), {"0:3b:0": ["Xid 48: a double-bit memory error"]}),
        (xid(119) + xid(79, "0008:01:00"), {"0:3b:0": ["Xid 119: its system processor (GSP) did not answer"], "8:1:0": ["Xid 79: it fell off the bus"]}),
        (xid(79) + LOADED, {}),
        (xid(48) + LOADED + xid(95), {"0:3b:0": ["Xid 95: an uncontained memory error"]}),
        (FALLEN, {"0:b3:0": ["it fell off the bus"]}),
        ("NVRM: The NVIDIA GPU 0000:b2:00.0 is new here\n" + FALLEN, {"0:b3:0": ["it fell off the bus"]}),
        ("NVRM: Xid (PCI:garbage): 79\nfallen off the bus\n", {}),
    ],
)  # fmt: skip
def test_only_errors_after_which_a_gpu_must_be_reset_count_and_only_since_the_driver_was_loaded(log, expected):
    assert find_faults(log) == expected


@pytest.mark.parametrize(
    ("bus", "key"),
    [("00000000:3B:00.0", "0:3b:0"), ("0000:3b:00", "0:3b:0"), ("3B:00.0", "0:3b:0"), ("00000008:01:00.0", "8:1:0"), ("", "")],
)  # fmt: skip
def test_nvml_and_the_kernel_write_one_address_in_their_own_ways(bus, key):
    assert bus_key(bus) == key


def test_a_log_that_may_not_be_read_tells_nothing(tmp_path):
    assert read_kernel_log(tmp_path / "none") == ""


def test_a_log_that_goes_on_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "kmsg")
    with (tmp_path / "kmsg").open("r+b", buffering=0) as writer:
        writer.write(xid(79).encode())
        found = []
        reading = threading.Thread(target=lambda: found.append(read_kernel_log(tmp_path / "kmsg")), daemon=True)
        reading.start()
        reading.join(timeout=20)
    assert found == [xid(79)]
