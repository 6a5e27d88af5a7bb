"""How long from ``airflow dags test`` to the first training step, beside a hand-written DAG of BashOperators.

Both DAGs run the same program. CPU seconds are those of every process that the command started, detached ones too:
this process is their subreaper and waits for all of them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import SHOWN, Row, arguments, pairs, report

_PR_SET_CHILD_SUBREAPER = 36
_PROGRAM = Path(__file__).parent / "programs" / "short_training.py"
_OURS = """
from airflow.sdk import DAG
from airflow_tf.operators.train import TensorFlowTrainOperator
from airflow_tf.sensors.devices import DeviceAvailabilitySensor
with DAG("ours_{count}", schedule=None):
    DeviceAvailabilitySensor(task_id="reserve", for_task="train", count={count}, kind="cpu") >> (
        TensorFlowTrainOperator.partial(
            task_id="train", entrypoint="{program}", count={count}, kind="cpu",
            environment={{"BENCH_MARKS": "{marks}"}},
        ).expand(replica={replicas})
    )
"""
_REFERENCE = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator
with DAG("reference_{count}", schedule=None):
    BashOperator.partial(task_id="train", append_env=True, bash_command="{python} {program}").expand(
        env=[{{"BENCH_MARKS": "{marks}", "REPLICA": str(i)}} for i in {replicas}]
    )
"""


class Bench:
    """A private Airflow home with both DAGs for one number of replicas."""

    def __init__(self, folder: Path, count: int) -> None:
        self._count = count
        self._marks = folder / "marks"
        dags = folder / "dags"
        dags.mkdir(parents=True)
        values = {
            "count": count,
            "program": _PROGRAM,
            "marks": self._marks,
            "python": sys.executable,
            "replicas": list(range(count)),
        }
        (dags / "ours.py").write_text(_OURS.format(**values))
        (dags / "reference.py").write_text(_REFERENCE.format(**values))
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")} | {
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__AIRFLOW_TF__LOCK_DIR": str(folder / "locks"),
            "AIRFLOW__AIRFLOW_TF__CPU_SLOTS": str(count),
        }
        (folder / "locks").mkdir()
        self._airflow("db", "migrate")

    def _airflow(self, *words: str) -> None:
        command = [sys.executable, "-m", "airflow", *words]
        subprocess.run(command, env=self._environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def run(self, dag: str) -> dict[str, float]:
        """Run one DAG; return seconds to the first step, to the last replica's end, wall and CPU."""
        shutil.rmtree(self._marks, ignore_errors=True)
        self._marks.mkdir()
        before = _cpu_seconds()
        started = time.time()
        self._airflow("dags", "test", f"{dag}_{self._count}")
        ended = time.time()
        _reap_all()
        steps, ends = (
            sorted(float(path.read_text()) for path in self._marks.glob(f"{what}-*")) for what in ("first-step", "end")
        )
        if len(steps) != self._count:
            raise RuntimeError(f"{dag}: {len(steps)} of {self._count} replicas trained")
        return {
            "seconds to first step": steps[0] - started,
            "seconds to last replica's end": ends[-1] - started,
            "wall seconds of the command": ended - started,
            "CPU seconds": _cpu_seconds() - before,
        }


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _reap_all() -> None:
    """Wait for the processes that detached themselves from the command."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def main() -> None:
    """Measure 1 and 4 replicas and print the table."""
    options = arguments("Start of training beside BashOperator")
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    rows: list[Row] = []
    for count, limit in ((1, 1.15), (4, 0.65)):
        folder = Path(tempfile.mkdtemp(prefix="bench-start-"))
        bench = Bench(folder, count)
        for dag in ("reference", "ours"):
            if not options.quick:
                bench.run(dag)  # warm
        ours, theirs = pairs(1 if options.quick else 5, lambda: bench.run("ours"), lambda: bench.run("reference"))  # noqa: B023 (called in this turn)
        for figure in ours:
            target = f"ratio <= {limit}" if _is_target(count, figure) else SHOWN
            rows.append(Row(f"{count} replica(s)", figure, ours[figure], theirs[figure], "BashOperator", target))
        shutil.rmtree(folder)
    report(rows, options.json)


def _is_target(count: int, figure: str) -> bool:
    if count == 1:
        return figure == "seconds to first step"
    return figure in {"CPU seconds", "seconds to last replica's end"}


if __name__ == "__main__":
    main()
