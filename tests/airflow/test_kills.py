"""What is killed while it trains: the task process, our supervisor, the zygote.

Every case ends with one whole result at the destination.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.airflow.home import AirflowHome
from tests.airflow.running import RunningAirflow
from tests.supervisor.harness import is_alive, wait_for
from tests.supervisor.processes import supervisor_of, zygote_of

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow, pytest.mark.slow]

HELD = "flights_held"
TRAIN = "train"
PROGRAM = '''
"""Train as the example does, but wait after each checkpoint until a file lets the run go on."""
import os, sys, time
from pathlib import Path
import tensorflow as tf

gates, save = Path(os.environ["GATES"]), tf.train.CheckpointManager.save

def save_and_wait(manager):
    path = save(manager)
    gates.mkdir(parents=True, exist_ok=True)
    (gates / f"saved-{os.environ['AIRFLOW_TF_REPLICA']}-{os.getpid()}").touch()
    while not (gates / "open").exists():
        time.sleep(0.05)
    return path

tf.train.CheckpointManager.save = save_and_wait
import train

sys.exit(train.main())
'''


@pytest.fixture(scope="module")
def airflow(home: AirflowHome) -> Iterator[RunningAirflow]:
    """Airflow with the example, of which the replicas are held in the middle of their training."""
    text = (home.dags / "flights.tf.yaml").read_text().replace("dag_id: flights\n", f"dag_id: {HELD}\n")
    gates = home.folder / "gates" / "{{ run_id }}"
    entrypoint = f'entrypoint: flights/held.py\n  environment: {{GATES: "{gates}"}}\n'
    (home.dags / f"{HELD}.tf.yaml").write_text(text.replace("entrypoint: flights/train.py\n", entrypoint))
    (home.dags / f"{HELD}.py").write_text((home.dags / "flights.py").read_text().replace("flights.tf", f"{HELD}.tf"))
    (home.dags / "flights" / "held.py").write_text(PROGRAM)
    running = RunningAirflow(home)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def training(airflow: RunningAirflow, run_id: str) -> dict[int, int]:
    """Start a run; wait until both replicas have saved a checkpoint and are held; return their pids."""
    airflow.trigger(HELD, run_id)
    gates = airflow.home.folder / "gates" / run_id
    wait_for(lambda: len(list(gates.glob("saved-*"))) == 2, "two replicas that have saved", 240)
    return {int(replica): int(pid) for _, replica, pid in (path.name.split("-") for path in gates.glob("saved-*"))}


def go_on(airflow: RunningAirflow, run_id: str) -> None:
    (airflow.home.folder / "gates" / run_id / "open").touch()


def tries(airflow: RunningAirflow, run_id: str) -> dict[int, int]:
    rows = airflow.instances(HELD, run_id)
    return {row["map_index"]: row["try_number"] for row in rows if row["task_id"] == TRAIN}


def log_of(airflow: RunningAirflow, run_id: str, try_number: int, replica: int) -> str:
    return airflow.log_of(HELD, run_id, TRAIN, try_number, map_index=replica)


@pytest.fixture
def before(home: AirflowHome) -> set[Path]:
    return home.versions()


def test_both_replicas_train_at_the_same_time(airflow: RunningAirflow, home: AirflowHome, before: set[Path]) -> None:
    pids = training(airflow, "both")
    assert set(pids) == {0, 1}
    assert all(is_alive(pid) for pid in pids.values())
    go_on(airflow, "both")
    assert airflow.wait_run(HELD, "both") == "success"
    home.assert_one_whole_result(before)
    assert tries(airflow, "both") == {0: 1, 1: 1}
    assert "[train 1]" in log_of(airflow, "both", 1, replica=1)


def test_sigkill_of_a_task_process(airflow: RunningAirflow, home: AirflowHome, before: set[Path]) -> None:
    pids = training(airflow, "task")
    rows = airflow.instances(HELD, "task")
    task = next(row for row in rows if row["task_id"] == TRAIN and row["map_index"] == 0)
    os.kill(task["pid"], signal.SIGKILL)
    wait_for(lambda: tries(airflow, "task")[0] == 2, "the second try")
    wait_for(lambda: f"pid {pids[0]}" in log_of(airflow, "task", 2, replica=0), "the second try beside the replica")
    assert is_alive(pids[0])
    go_on(airflow, "task")
    assert airflow.wait_run(HELD, "task") == "success"
    home.assert_one_whole_result(before)


@pytest.mark.parametrize("victim", ["supervisor", "zygote"])
def test_sigkill_of_our_processes(airflow: RunningAirflow, home: AirflowHome, before: set[Path], victim: str) -> None:
    pids = training(airflow, victim)
    find = supervisor_of if victim == "supervisor" else zygote_of
    pid = find(home.gang_folder(victim, dag_id=HELD))
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(is_alive(pid) for pid in pids.values()), "the replicas' end", deadline_seconds=10)
    go_on(airflow, victim)
    assert airflow.wait_run(HELD, victim) == "success"
    assert tries(airflow, victim) == {0: 2, 1: 2}
    assert "resumed from" in log_of(airflow, victim, 2, replica=0)
    home.assert_one_whole_result(before)
