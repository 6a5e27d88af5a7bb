"""How long a gang of four is away when one of its replicas is killed, beside hand-written retries of Airflow.

Both sides run the same program, MultiWorkerMirroredStrategy over four workers, in the same running Airflow. The
reference maps a BashOperator over the workers of a fixed cluster and lets Airflow try again, after a second, what
failed: the killed task, and those whose collective broke. Replicas go on from their last checkpoint on both sides.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from harness import SHOWN, Row, arguments, pairs, report
from private import PROGRAMS, private_folder, running_airflow

from airflow_tf.testing.private import free_ports
from tests.airflow.running import RunningAirflow
from tests.supervisor.harness import wait_for

COUNT, STEPS_BEFORE = 4, 12
DEADLINE_SECONDS = 300.0
TARGET_SECONDS = 15
_OURS = """
from airflow.sdk import DAG
from airflow_tf.operators.train import TensorFlowTrainOperator
from airflow_tf.sensors.devices import DeviceAvailabilitySensor
with DAG("ours", schedule=None) as dag:
    DeviceAvailabilitySensor(
        task_id="reserve", for_task="train", count={count}, kind="cpu", poke_interval=1
    ) >> TensorFlowTrainOperator.partial(
        task_id="train", entrypoint="{program}", count={count}, kind="cpu", strategy="sync", restarts=3,
        environment={{"BENCH_MARKS": "{marks}/{{{{ run_id }}}}"}},
    ).expand(replica={replicas})
"""
_REFERENCE = """
import datetime as dt
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator
with DAG("reference", schedule=None) as dag:
    BashOperator.partial(
        task_id="train", append_env=True, bash_command="exec {python} {program}",
        retries=20, retry_delay=dt.timedelta(seconds=1),
    ).expand(env=[
        {{
            "BENCH_MARKS": "{marks}/{{{{ run_id }}}}",
            "AIRFLOW_TF_CHECKPOINT_DIR": "{marks}/{{{{ run_id }}}}/checkpoints-" + str(i),
            "AIRFLOW_TF_REPLICA": str(i),
            "TF_CONFIG": {cluster!r} % i,
        }}
        for i in {replicas}
    ])
"""


class Bench:
    """Both DAGs in one running Airflow."""

    def __init__(self, airflow: RunningAirflow, marks: Path) -> None:
        self._airflow = airflow
        self._marks = marks
        self._runs = 0

    def recover(self, dag: str) -> dict[str, float]:
        """Kill one replica of a gang that trains; return how long it took to go on."""
        self._runs += 1
        run = f"{dag}-{self._runs}"
        marks = self._marks / run
        marks.mkdir(parents=True)
        started = time.time()
        self._airflow.trigger(dag, run)
        wait_for(
            lambda: len(steps_of(marks)) == COUNT and last_step(steps_of(marks)) >= STEPS_BEFORE, f"{run}: steps", 300.0
        )
        before = steps_of(marks)
        begun = min(steps[0][1] for steps in before.values())
        reached = last_step(steps_of(marks))
        victim = next(name for name in before if name.startswith(f"{COUNT - 1}-"))
        os.kill(int(victim.partition("-")[2]), signal.SIGKILL)
        killed = time.time()
        wait_for(lambda: steps_of(marks).keys() - before.keys(), f"{run}: a new step", DEADLINE_SECONDS)
        resumed = [steps[0] for name, steps in steps_of(marks).items() if name not in before]
        (marks / "finish").touch()
        state = self._airflow.wait_run(dag, run, DEADLINE_SECONDS)
        if state != "success":
            raise RuntimeError(f"{run}: {state}")
        return {
            "seconds from SIGKILL to the first new step": min(when for _, when in resumed) - killed,
            "steps taken again": max(0, reached - min(number for number, _ in resumed) + 1),
            "seconds from trigger to the first step": begun - started,
        }


def steps_of(marks: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the steps of each process that took one, name of its mark -> (step, time)."""
    found = {}
    for path in marks.glob("*-*"):
        lines = path.read_text().splitlines() if path.is_file() else []
        if lines:
            found[path.name] = [(int(line.split()[0]), float(line.split()[1])) for line in lines]
    return found


def last_step(steps: dict[str, list[tuple[int, float]]]) -> int:
    """Return the step that all of some processes have taken."""
    return min(taken[-1][0] for taken in steps.values())


def make_dags(marks: Path) -> dict[str, str]:
    """Return both DAG files; a run's marks are in the folder of its id."""
    ports = free_ports([str(number) for number in range(COUNT)])
    cluster = {"cluster": {"worker": [f"127.0.0.1:{port}" for port in ports.values()]}}
    values = {
        "count": COUNT,
        "program": PROGRAMS / "synchronous_training.py",
        "marks": marks,
        "python": sys.executable,
        "replicas": list(range(COUNT)),
        "cluster": json.dumps(cluster | {"task": {"type": "worker", "index": "%d"}}).replace('"%d"', "%d"),
    }
    return {"ours.py": _OURS.format(**values), "reference.py": _REFERENCE.format(**values)}


def main() -> None:
    """Kill a replica of both and print the table."""
    options = arguments("Recovery of a gang from the death of a replica")
    with private_folder("recovery") as folder, running_airflow(folder, make_dags(folder / "marks"), COUNT) as airflow:
        bench = Bench(airflow, folder / "marks")
        count = 1 if options.quick else 5
        ours, theirs = pairs(count, lambda: bench.recover("ours"), lambda: bench.recover("reference"))
    case, name = f"gang of {COUNT}, one replica killed", "Airflow retries"
    rows = [Row(case, figure, ours[figure], theirs[figure], name, _target(figure)) for figure in ours]
    report(rows, options.json)


def _target(figure: str) -> str:
    return f"ours <= {TARGET_SECONDS}" if figure == "seconds from SIGKILL to the first new step" else SHOWN


if __name__ == "__main__":
    main()
