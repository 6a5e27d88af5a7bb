"""Sensor and training wait in the triggerer of a running Airflow: no slot is held, and nothing is lost or left.

The training program needs no TensorFlow: it prints numbered lines until a file named after its run appears.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted
from airflow_tf.core.states import ExitCause
from airflow_tf.ledger.read import LedgerReader, ReplicaRow
from airflow_tf.supervisor.acquire import acquire
from tests.airflow.home import AirflowHome
from tests.airflow.running import RunningAirflow
from tests.supervisor.harness import is_alive, wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

DAG = """\
from airflow.sdk import DAG

from airflow_tf.operators.train import TensorFlowTrainOperator
from airflow_tf.sensors.devices import DeviceAvailabilitySensor

with DAG("deferring", schedule=None):
    reserve = DeviceAvailabilitySensor(task_id="reserve", for_task="train", kind="cpu", timeout=600, deferrable=True)
    train = TensorFlowTrainOperator.partial(
        task_id="train",
        entrypoint="train.py",
        arguments={{"gate": "{gates}/{{{{ run_id }}}}"}},
        kind="cpu",
        start_method="spawn",
        kill_grace_seconds=2,
        require_checkpoint=False,
        deferrable=True,
    ).expand(replica=[0, 1])
    reserve >> train
"""
PROGRAM = """\
import argparse, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--gate", type=pathlib.Path)
gate, number = parser.parse_args().gate, 0
while not gate.exists():
    print("line", number, flush=True)
    number += 1
    time.sleep(0.2)
print("lines:", number)
"""


class Deferring:
    """The DAG above in a running Airflow."""

    def __init__(self, airflow: RunningAirflow, gates: Path) -> None:
        self.airflow, self.home, self._gates = airflow, airflow.home, gates

    def trigger(self, run_id: str) -> None:
        self.airflow.trigger("deferring", run_id)

    def open_gate(self, run_id: str) -> None:
        (self._gates / run_id).touch()

    def states(self, run_id: str, task_id: str) -> dict[int, str]:
        rows = self.airflow.instances("deferring", run_id)
        return {row["map_index"]: row["state"] for row in rows if row["task_id"] == task_id}

    def wait_states(self, run_id: str, task_id: str, states: dict[int, str], deadline_seconds: float = 60) -> None:
        what = f"{task_id} of {run_id} in {states}"
        wait_for(lambda: self.states(run_id, task_id) == states, what, deadline_seconds)

    def replicas(self, run_id: str) -> dict[int, ReplicaRow]:
        runs = [run for run in LedgerReader(self.home.ledger).runs("deferring") if run.run_id == run_id]
        return {row.replica: row for run in runs for row in run.replicas}

    def training(self, run_id: str) -> dict[int, int]:
        """Wait until both tasks are deferred and both replicas run; return their pids."""
        self.wait_states(run_id, "train", {0: "deferred", 1: "deferred"}, 120)
        wait_for(lambda: all(row.pid for row in self.replicas(run_id).values()), "pids in the ledger")
        return {number: row.pid or 0 for number, row in self.replicas(run_id).items()}

    def mark(self, run_id: str, map_index: int, state: str) -> None:
        self.airflow.mark("deferring", run_id, "train", state, map_index)

    def held(self) -> set[str]:
        return {uuid for row in LedgerReader(self.home.ledger).reservations() for uuid in row.devices}

    def lines(self, run_id: str, replica: int) -> list[str]:
        """Lines of the replica's output in its task's log, wherever in it they are."""
        found = json.loads(self.airflow.log_of("deferring", run_id, "train", 1, map_index=replica))["content"]
        prefix = f"[train {replica}] "
        texts = [str(row.get("event", "")) for row in found]
        return [line for text in texts if text.startswith(prefix) for line in text.removeprefix(prefix).splitlines()]


@pytest.fixture(scope="module")
def deferring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deferring]:
    home = AirflowHome(tmp_path_factory.mktemp("deferring"), "unused")
    gates = home.folder / "gates"
    for folder in (home.dags, gates, home.folder / "locks"):
        folder.mkdir()
    (home.dags / "deferring.py").write_text(DAG.format(gates=gates))
    (home.dags / "train.py").write_text(PROGRAM)
    (home.dags / ".airflowignore").write_text("train.py\n")
    home.run("db", "migrate")
    airflow = RunningAirflow(home)
    try:
        airflow.start()
        yield Deferring(airflow, gates)
    finally:
        airflow.stop()


def test_both_wait_without_a_slot_and_the_output_is_shown_once(deferring: Deferring) -> None:
    ledger, settings = deferring.home.ledger, deferring.home.settings
    other = acquire(ledger, settings, GangKey(ledger.ledger_id, "other", "r", "train"), DeviceRequest("cpu"), [0, 1])
    assert isinstance(other, Granted)
    deferring.trigger("plain")
    deferring.wait_states("plain", "reserve", {-1: "deferred"}, 120)
    for member in other.members:
        ledger.release(member)
    deferring.training("plain")
    wait_for(lambda: len(deferring.lines("plain", 0)) > 20, "live output of a deferred task")
    deferring.open_gate("plain")
    assert deferring.airflow.wait_run("deferring", "plain") == "success"
    for replica in (0, 1):
        *lines, last = deferring.lines("plain", replica)
        assert last == f"lines: {len(lines)}"
        assert sorted(lines, key=lambda line: int(line.split()[1])) == [f"line {n}" for n in range(len(lines))]
    path = "/api/v2/dags/deferring/dagRuns/plain/taskInstances/train/xcomEntries/return_value?map_index=1"
    value: Any = deferring.airflow.request("GET", path)["value"]
    assert (value if isinstance(value, dict) else json.loads(value))["devices"] == ["cpu-1"]
    assert deferring.held() == set()


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_mark_ends_the_replica_of_a_deferred_task(deferring: Deferring, state: str) -> None:
    deferring.trigger(state)
    pids = deferring.training(state)
    deferring.mark(state, 0, state)
    wait_for(lambda: not is_alive(pids[0]) and len(deferring.held()) == 1, "a free device", deadline_seconds=30)
    assert is_alive(pids[1])
    row = deferring.replicas(state)[0]
    assert (row.cause, row.message) == (ExitCause.MARKED, f"its task was marked {state}")
    deferring.open_gate(state)
    assert deferring.airflow.wait_run("deferring", state) == state
    assert deferring.states(state, "train") == {0: state, 1: "success"}
    assert deferring.held() == set()


def test_a_clear_ends_the_replica_of_a_deferred_task_and_starts_a_new_one(deferring: Deferring) -> None:
    deferring.trigger("clear")
    pids = deferring.training("clear")
    deferring.airflow.clear("deferring", "clear", "train", 0)
    wait_for(lambda: not is_alive(pids[0]), "the end of the old replica", deadline_seconds=30)
    deferring.wait_states("clear", "train", {0: "deferred", 1: "deferred"}, 60)
    assert deferring.replicas("clear")[0].generation == 2
    assert deferring.training("clear")[1] == pids[1]
    deferring.open_gate("clear")
    assert deferring.airflow.wait_run("deferring", "clear") == "success"


def test_training_goes_on_while_the_triggerer_is_killed_and_restarted(deferring: Deferring) -> None:
    deferring.trigger("restart")
    pids = deferring.training("restart")
    deferring.airflow.parts["triggerer"].kill()
    deferring.airflow.parts["triggerer"].start()
    before = len(deferring.lines("restart", 0))
    wait_for(lambda: len(deferring.lines("restart", 0)) > before + 20, "output by the new triggerer", 90)
    assert all(is_alive(pid) for pid in pids.values())
    deferring.open_gate("restart")
    assert deferring.airflow.wait_run("deferring", "restart") == "success"
    lines = set(deferring.lines("restart", 0))
    assert f"lines: {len(lines) - 1}" in lines
