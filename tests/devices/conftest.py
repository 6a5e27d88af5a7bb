"""A simulated NVML that this process and those it starts find."""

from __future__ import annotations

import pytest

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
