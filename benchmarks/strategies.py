"""Train the examples `sync` and `parameter_server` under a supervisor, and by hand with TF_CONFIG and a shell each.

Both sides run the same program with the same steps and checkpoints; the first replica tells its steps per second from
the first step, the tracing of the graph included, to the last.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import Row, arguments, pairs, report
from private import private_folder

from airflow_tf.core.cluster import tasks
from airflow_tf.core.settings import Settings
from airflow_tf.core.tf_config import tf_config
from airflow_tf.testing.private import free_ports
from tests.supervisor.harness import Gang

DAGS = Path(__file__).resolve().parents[1] / "dags"
FIGURE = "steps per second"
DEADLINE_SECONDS = 300.0
CASES: dict[str, tuple[str, str, dict[str, int]]] = {
    "sync, 2 workers": ("sync", "sync/train.py", {"worker": 2}),
    "async, 2 workers": ("async", "parameter_server/train.py", {"chief": 1, "worker": 2, "ps": 1}),
}
Case = tuple[str, str, dict[str, int]]


def main() -> None:
    """Measure and report."""
    options = arguments(__doc__ or "")
    steps, count = (200, 1) if options.quick else (4000, 5)
    variables = {"STEPS": str(steps), "ROUNDS": str(steps // 20), "TF_CPP_MIN_LOG_LEVEL": "2"}
    rows = []
    with private_folder("strategies") as folder:
        for name, case in CASES.items():
            ours, reference = pairs(
                count, lambda: {FIGURE: supervised(folder, case, variables)},  # noqa: B023 (called in this turn)
                lambda: {FIGURE: by_hand(folder, case, variables)},  # noqa: B023
            )  # fmt: skip
            rows.append(Row(name, FIGURE, ours[FIGURE], reference[FIGURE], "by hand, a shell each", "ratio >= 0.95"))
    report(rows, options.json)


def timed(program: str) -> str:
    """Let an example tell its steps per second."""
    text = (DAGS / program).read_text()
    marks = [line for line in text.splitlines() if line.startswith(('print("first step"', 'print("result"'))]
    if len(marks) != 2:
        raise ValueError(f"{program} does not begin and end as the other examples do")
    begin, end = marks
    text = text.replace(begin, f"{begin}\nimport time\nbegan = time.perf_counter()")
    return text.replace(end, f"print('rate', int(step.numpy()) / (time.perf_counter() - began), flush=True)\n{end}")


def supervised(folder: Path, case: Case, variables: Mapping[str, str]) -> float:
    """Return the rate of a gang under its supervisor."""
    strategy, program, roles = case
    place = _place(folder)
    (place / "locks").mkdir()
    count = sum(roles.values())
    settings = Settings(place / "home", f"sqlite:///{place / 'ledger.db'}", place / "locks", cpu_slots=count)
    (place / "home").mkdir()
    gang = Gang(settings, place, count=count, start_method="zygote")
    plan: dict[str, Any] = {"strategy": strategy, "roles": roles}
    watches = [
        gang.start(timed(program), replica=number, environment=dict(variables), **plan) for number in range(count)
    ]
    for watch in watches:
        outcome = watch.end(DEADLINE_SECONDS)
        if outcome.message:
            raise RuntimeError(outcome.message)
    if not gang.client.wait_gone(60):
        raise RuntimeError("the supervisor does not end")
    return float(watches[0].line("rate "))


def by_hand(folder: Path, case: Case, variables: Mapping[str, str]) -> float:
    """Return the rate of the same processes, each started in its session with its TF_CONFIG; servers are ended."""
    strategy, program, roles = case
    place = _place(folder)
    script = place / "train.py"
    script.write_text(timed(program))
    members = tasks(roles)
    addresses = [f"127.0.0.1:{port}" for port in free_ports([str(member) for member in members]).values()]
    processes = []
    for number, _ in enumerate(members):
        environment = os.environ | variables | {
            "TF_CONFIG": tf_config(roles, addresses, number),
            "CUDA_VISIBLE_DEVICES": "-1",
            "AIRFLOW_TF_CHECKPOINT_DIR": str(place / f"checkpoints-{number}"),
            "BENCH_FOLDER": str(folder),
        }  # fmt: skip
        pipe = subprocess.PIPE if number == 0 else subprocess.DEVNULL
        with (place / f"errors-{number}").open("w") as errors:
            command = [sys.executable, str(script)]
            processes.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdout=pipe,
                    stderr=errors,
                    text=True,
                    start_new_session=True,  # as in a shell of its own; Linux shares the CPUs between sessions
                )
            )
    output, _ = processes[0].communicate(timeout=DEADLINE_SECONDS)
    for process in processes[1:]:
        if strategy == "async":
            process.terminate()
        process.wait(DEADLINE_SECONDS)
    rates = [float(line.split()[1]) for line in output.splitlines() if line.startswith("rate ")]
    if not rates:
        raise RuntimeError((place / "errors-0").read_text()[-2000:])
    return rates[0]


def _place(folder: Path) -> Path:
    place = folder / str(len(list(folder.iterdir())))
    place.mkdir()
    return place


if __name__ == "__main__":
    main()
