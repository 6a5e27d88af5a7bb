"""What is killed while it trains: the task process, our supervisor, the zygote.

Every case ends with one whole result at the destination.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_tf.ledger.read import LedgerReader
from tests.airflow.home import AirflowHome
from tests.airflow.running import RunningAirflow
from tests.supervisor.harness import is_alive, wait_for
from tests.supervisor.processes import supervisor_of, zygote_of

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow, pytest.mark.slow]

EPOCHS = {"epochs": 60}  # long enough to be caught in the middle, short enough to wait for
TRAIN = "train"


@pytest.fixture(scope="module")
def airflow(home: AirflowHome) -> Iterator[RunningAirflow]:
    running = RunningAirflow(home)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def replica_pids(home: AirflowHome, run_id: str) -> dict[int, int]:
    """Replica number -> pid of those that have taken a step."""
    runs = [run for run in LedgerReader(home.ledger).runs("flights") if run.run_id == run_id and run.task_id == TRAIN]
    rows = [row for run in runs for row in run.replicas]
    return {row.replica: row.pid for row in rows if row.pid is not None and row.step and row.state == "running"}


def training(home: AirflowHome, run_id: str) -> dict[int, int]:
    """Wait until both replicas train and have saved a checkpoint; return their pids."""
    folder = home.gang_folder(run_id)
    wait_for(lambda: len(replica_pids(home, run_id)) == 2, "two replicas that train", 180)
    for replica in (0, 1):
        checkpoints = folder / f"replica-{replica}" / "generation-1" / "checkpoints"
        wait_for(lambda: list(checkpoints.glob("*.index")), f"a checkpoint of replica {replica}")  # noqa: B023 (at once)
    return replica_pids(home, run_id)


def tries(airflow: RunningAirflow, run_id: str) -> dict[int, int]:
    rows = airflow.instances("flights", run_id)
    return {row["map_index"]: row["try_number"] for row in rows if row["task_id"] == TRAIN}


@pytest.fixture
def before(home: AirflowHome) -> set[Path]:
    return home.versions()


def test_both_replicas_train_at_the_same_time(airflow: RunningAirflow, home: AirflowHome, before: set[Path]) -> None:
    airflow.trigger("flights", "both", EPOCHS)
    pids = training(home, "both")
    assert len(set(pids.values())) == 2
    assert airflow.wait_run("flights", "both") == "success"
    home.assert_one_whole_result(before)
    assert tries(airflow, "both") == {0: 1, 1: 1}
    log = airflow.log_of("flights", "both", TRAIN, 1, map_index=1)
    assert "[train 1]" in log


def test_sigkill_of_a_task_process(airflow: RunningAirflow, home: AirflowHome, before: set[Path]) -> None:
    airflow.trigger("flights", "task", EPOCHS)
    pids = training(home, "task")
    rows = airflow.instances("flights", "task")
    task = next(row for row in rows if row["task_id"] == TRAIN and row["map_index"] == 0)
    os.kill(task["pid"], signal.SIGKILL)
    wait_for(lambda: tries(airflow, "task")[0] == 2, "the second try")
    assert is_alive(pids[0])
    assert airflow.wait_run("flights", "task") == "success"
    assert f"pid {pids[0]}" in airflow.log_of("flights", "task", TRAIN, 2, map_index=0)
    home.assert_one_whole_result(before)


@pytest.mark.parametrize("victim", ["supervisor", "zygote"])
def test_sigkill_of_our_processes(airflow: RunningAirflow, home: AirflowHome, before: set[Path], victim: str) -> None:
    airflow.trigger("flights", victim, EPOCHS)
    pids = training(home, victim)
    find = supervisor_of if victim == "supervisor" else zygote_of
    pid = find(home.gang_folder(victim))
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(is_alive(pid) for pid in pids.values()), "the replicas' end", deadline_seconds=10)
    assert airflow.wait_run("flights", victim) == "success"
    assert tries(airflow, victim) == {0: 2, 1: 2}
    assert "resumed from" in airflow.log_of("flights", victim, TRAIN, 2, map_index=0)
    home.assert_one_whole_result(before)
