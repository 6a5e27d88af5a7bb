"""How many lines of a replica's output per second reach its task's log, beside a BashOperator, which logs each line.

Both sides run the same program in the same running Airflow, and the lines are counted in the file of the task's log.
A log that keeps up is as long in coming as the program is in writing; a slower one is late (a replica writes to a
file), or holds the program up (that of a BashOperator writes to a pipe).
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from harness import SHOWN, Row, arguments, pairs, report
from private import PROGRAMS, private_folder, running_airflow

from tests.airflow.running import RunningAirflow

RATES = {11_000: "ours >= 10000", 50_000: SHOWN}
"""Lines per second that the program writes, and what of them must reach the log: a little more than the target asks."""

LINES = 220_000
DEADLINE_SECONDS = 600.0
RATE_SHOWN, LOST, REPEATED = "lines per second in the task's log", "lines lost", "lines repeated"
_POLL_SECONDS = 0.05
_NUMBER = re.compile(rb"line (\d{9}) of a program")
_OURS = """
from airflow.sdk import DAG
from airflow_tf.operators.train import TensorFlowTrainOperator
from airflow_tf.sensors.devices import DeviceAvailabilitySensor
with DAG("ours", schedule=None) as dag:
    DeviceAvailabilitySensor(
        task_id="reserve", for_task="train", count=1, kind="cpu", poke_interval=1
    ) >> TensorFlowTrainOperator.partial(
        task_id="train", entrypoint="{program}", count=1, kind="cpu", start_method="spawn", require_checkpoint=False,
        environment={environment},
    ).expand(replica=[0])
"""
_REFERENCE = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator
with DAG("reference", schedule=None) as dag:
    BashOperator(
        task_id="train", append_env=True, bash_command="exec {python} {program}",
        env={environment},
    )
"""


def make_dags(folder: Path) -> dict[str, str]:
    """Return both DAG files; how much is written is in a run's configuration."""
    environment = {
        "FLOOD_LINES": "{{ dag_run.conf.lines }}",
        "FLOOD_RATE": "{{ dag_run.conf.rate }}",
        "FLOOD_MARK": f"{folder}/mark-{{{{ run_id }}}}",
    }
    values = {"program": PROGRAMS / "flood.py", "python": sys.executable, "environment": environment}
    return {"ours.py": _OURS.format(**values), "reference.py": _REFERENCE.format(**values)}


class Counter:
    """Counts the numbered lines in the logs of one run's training task while they grow."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._offsets: dict[Path, int] = {}
        self._seen: dict[int, int] = {}

    def look(self) -> int:
        """Read what is new; return how many different lines have come."""
        for path in self._logs.rglob("attempt=*.log"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]  # a record is whole once its line is
            self._offsets[path] = self._offsets.get(path, 0) + len(data)
            for match in _NUMBER.finditer(data):
                number = int(match.group(1))
                self._seen[number] = self._seen.get(number, 0) + 1
        return len(self._seen)

    @property
    def repeated(self) -> int:
        """How many lines came more than once."""
        return sum(times > 1 for times in self._seen.values())


class Bench:
    """Both DAGs in one running Airflow."""

    def __init__(self, airflow: RunningAirflow) -> None:
        self._airflow = airflow
        self._runs = 0

    def follow(self, dag: str, rate: int, lines: int) -> dict[str, float]:
        """Run one DAG and follow its log until all lines are there, or the run has ended without them."""
        self._runs += 1
        run, folder = f"{dag}-{self._runs}", self._airflow.home.folder
        counter = Counter(folder / "logs" / f"dag_id={dag}" / f"run_id={run}" / "task_id=train")
        self._airflow.trigger(dag, run, {"lines": lines, "rate": rate})
        deadline, complete = time.monotonic() + DEADLINE_SECONDS, 0.0
        while not complete and time.monotonic() < deadline:
            complete = time.time() if counter.look() >= lines else 0.0
            time.sleep(_POLL_SECONDS)
        state = self._airflow.wait_run(dag, run, DEADLINE_SECONDS)
        arrived = counter.look()
        if state != "success":
            raise RuntimeError(f"{run}: {state}")
        began, ended = map(float, (folder / f"mark-{run}").read_text().split())
        return {
            RATE_SHOWN: arrived / ((complete or time.time()) - began),
            LOST: lines - arrived,
            REPEATED: counter.repeated,
            "seconds that the program needed to write": ended - began,
            "seconds from the last line to its place in the log": max(0.0, complete - ended),
        }


def main() -> None:
    """Follow both logs at each rate and print the table."""
    options = arguments("Lines of output per second through a view")
    lines, count = (LINES // 5, 1) if options.quick else (LINES, 5)
    rows: list[Row] = []
    with private_folder("logs") as folder, running_airflow(folder, make_dags(folder), 1) as airflow:
        bench = Bench(airflow)
        for rate, target in RATES.items():
            given = (rate, lines)
            ours, theirs = pairs(
                count,
                lambda given=given: bench.follow("ours", *given),  # type: ignore[misc]
                lambda given=given: bench.follow("reference", *given),  # type: ignore[misc]
            )
            targets = {RATE_SHOWN: target, LOST: "ours <= 0", REPEATED: "ours <= 0"}
            rows += [
                Row(
                    f"{lines} lines, {rate} per second",
                    figure,
                    mine,
                    theirs[figure],
                    "BashOperator",
                    targets.get(figure, SHOWN),
                )
                for figure, mine in ours.items()
            ]
    report(rows, options.json)


if __name__ == "__main__":
    main()
