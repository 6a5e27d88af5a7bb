"""The digest of what a replica was declared to run: it changes with what would be trained, and with nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.operators.spec import spec_digest

INPUTS = {"train": {"source": "hdfs://nn/train", "shard": None, "hdfs_conn_id": "hdfs"}}


@pytest.fixture
def launch(tmp_path: Path) -> ReplicaLaunch:
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    return ReplicaLaunch(0, 2, str(script), str(tmp_path), {"epochs": "3"}, environment={"TOKEN": "s3cret"})


def spec(launch: ReplicaLaunch, **changes: Any) -> str:
    arguments: dict[str, Any] = {"inputs": INPUTS, "request": DeviceRequest("gpu"), "python": "/usr/bin/python3"}
    return spec_digest(launch, **(arguments | changes))


@pytest.mark.parametrize(
    "changes",
    [{"arguments": {"epochs": "4"}}, {"session_config": {"log": 1}}, {"count": 3}, {"environment": {"OTHER": "x"}}],
)
def test_what_is_trained_changes_it(launch: ReplicaLaunch, changes: dict[str, Any]) -> None:
    assert spec(dataclasses.replace(launch, **changes)) != spec(launch)


def test_inputs_devices_and_interpreter_change_it(launch: ReplicaLaunch) -> None:
    others = {
        spec(launch, inputs={"train": {"source": "hdfs://nn/other"}}),
        spec(launch, request=DeviceRequest("gpu", per_replica=2)),
        spec(launch, python="/opt/python3"),
        spec(launch),
    }
    assert len(others) == 4


def test_the_program_s_text_changes_it(launch: ReplicaLaunch) -> None:
    before = spec(launch)
    Path(launch.entrypoint).write_text("print(2)")
    assert spec(launch) != before


@pytest.mark.parametrize("changes", [{"environment": {"TOKEN": "other"}}, {"kill_grace_seconds": 5.0}])
def test_a_secret_and_the_grace_do_not(launch: ReplicaLaunch, changes: dict[str, Any]) -> None:
    assert spec(dataclasses.replace(launch, **changes)) == spec(launch)
