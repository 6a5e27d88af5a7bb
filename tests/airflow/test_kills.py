"""What is killed while it trains: the task process, our supervisor, the zygote; and ^C in a terminal.

Every case ends with one whole result at the destination.
"""

from __future__ import annotations

import os
import pty
import signal
import sys
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


def versions(store: str) -> list[Path]:
    return sorted(Path(store.removeprefix("file://"), "models").glob("v=*"))


def tries(airflow: RunningAirflow, run_id: str) -> dict[int, int]:
    rows = airflow.instances("flights", run_id)
    return {row["map_index"]: row["try_number"] for row in rows if row["task_id"] == TRAIN}


@pytest.fixture
def before(home: AirflowHome) -> set[Path]:
    return set(versions(home.store))


def assert_one_whole_result(home: AirflowHome, before: set[Path]) -> None:
    (version,) = set(versions(home.store)) - before
    assert {"_SUCCESS", "manifest.json", "model.index"} <= {path.name for path in version.iterdir()}
    assert not [path for path in version.parent.iterdir() if path.name.startswith(".")]


def test_both_replicas_train_at_the_same_time(airflow: RunningAirflow, home: AirflowHome, before: set[Path]) -> None:
    airflow.trigger("flights", "both", EPOCHS)
    pids = training(home, "both")
    assert len(set(pids.values())) == 2
    assert airflow.wait_run("flights", "both") == "success"
    assert_one_whole_result(home, before)
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
    assert_one_whole_result(home, before)


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
    assert_one_whole_result(home, before)


@pytest.mark.usefixtures("no_processes_left")
@pytest.mark.parametrize(
    "words",
    [
        ("tasks", "test", "flights", TRAIN, "--map-index", "0", "--task-params", '{"epochs": 500}'),
        ("dags", "test", "flights", "--conf", '{"epochs": 500}'),
    ],
    ids=["tasks", "dags"],
)
def test_control_c_in_a_terminal(home: AirflowHome, before: set[Path], words: tuple[str, ...]) -> None:
    known = {run.run_id for run in LedgerReader(home.ledger).runs("flights")}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, home.command(*words), home.environment)
    output: list[bytes] = []
    os.set_blocking(terminal, False)

    def drain() -> None:
        while True:
            try:
                data = os.read(terminal, 65536)
            except OSError:  # nothing to read now, or the other end is closed
                return
            if not data:
                return
            output.append(data)

    def replica() -> int | None:
        drain()
        runs = [run for run in LedgerReader(home.ledger).runs("flights") if run.run_id not in known]
        rows = [row for run in runs for row in run.replicas if row.pid and row.state == "running"]
        return rows[0].pid if rows else None

    trained = wait_for(replica, "a replica that trains", 120)
    os.write(terminal, b"\x03")
    wait_for(lambda: drain() or not is_alive(trained), "the replica's end within its grace", deadline_seconds=30)
    wait_for(lambda: drain() or os.waitpid(pid, os.WNOHANG)[0] == pid, "the command's end", 60)
    os.close(terminal)
    text = b"".join(output).decode(errors="replace")
    assert "interrupted from the keyboard" in text
    assert LedgerReader(home.ledger).reservations() == []
    assert set(versions(home.store)) == before
    home.run("dags", "test", "flights", "--conf", '{"epochs": 1}')
    assert_one_whole_result(home, before)
