"""A simulated NVML that this process and those it starts find, and who asks for its GPUs."""

from __future__ import annotations

import pytest

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.identity import GangKey
from airflow_tf.ledger import open_ledger
from airflow_tf.supervisor.acquire import acquire
from airflow_tf.testing.nvml import SimulatedNvml, build


@pytest.fixture
def nvml(tmp_path_factory, monkeypatch, library):
    folder = tmp_path_factory.mktemp("nvml")
    (folder / library.name).symlink_to(library)
    simulated = SimulatedNvml(folder)
    for name, value in simulated.environment.items():
        monkeypatch.setenv(name, value)
    return simulated


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("library"))


@pytest.fixture
def lock_dir(settings):
    return settings.lock_dir


@pytest.fixture
def reserve(settings):
    ledger = open_ledger(settings)

    def call(replicas, **demands):
        key = GangKey(ledger.ledger_id, "dag", "run", "train")
        return acquire(ledger, settings, key, DeviceRequest(**demands), replicas)

    yield call
    ledger.close()
