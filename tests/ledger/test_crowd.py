"""Requests that no count of slots, pools or devices of all hosts together answers: only the ledger does."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from airflow_tf.core.devices import Host
from airflow_tf.core.errors import DevicesNeverFitError
from airflow_tf.core.ledger import Granted, Refused
from tests.ledger.conftest import HOST, devices, request

SENSORS, DEVICES = 20, 2


def test_sensors_that_all_fire_together_get_no_more_than_there_is(ledger, gang):
    """Airflow may run more deferred tasks at once than their pool has slots: apache/airflow#69187."""
    together = threading.Barrier(SENSORS)

    def fire(number):
        together.wait(timeout=60)
        return ledger.reserve(gang(f"sensor-{number}"), request(), [0], HOST, devices(DEVICES))

    with ThreadPoolExecutor(SENSORS) as pool:
        answers = list(pool.map(fire, range(SENSORS)))
    granted = [answer for answer in answers if isinstance(answer, Granted)]
    given = {device.uuid for answer in granted for member in answer.members for device in member.devices}
    assert (len(granted), len(given)) == (DEVICES, DEVICES)
    assert len({answer.reservation_id for answer in granted}) == DEVICES
    assert sum(isinstance(answer, Refused) for answer in answers) == SENSORS - DEVICES


def test_two_workers_of_two_devices_never_fit_on_hosts_of_three_and_of_one(ledger, gang):
    """Enough devices in all, and on no host enough: kubeflow/trainer#2525."""
    small = Host("other-place", "small-host", HOST.boot_id)
    ledger.register_host(small, [replace(each, device=replace(each.device, uuid="small-0")) for each in devices(1)])
    with pytest.raises(DevicesNeverFitError, match="gpu-host") as caught:
        ledger.reserve(gang("big"), request(2), [0, 1], HOST, devices(3))
    assert "4 devices" in str(caught.value)
    assert ledger.look(gang("big")) is None, "it waits for what never comes"
