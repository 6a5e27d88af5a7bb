"""What a cell that fails leaves behind: the reason, to be read where nobody can look at the machine, and nothing else."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from sqlalchemy import select

from airflow_tf.ledger.schema import Base
from tests.airflow.matrix.live import AFTERMATH_SECONDS, LiveRun

LINE_CHARACTERS = 500
SCHEDULER_LINES, TASK_LINES, SUPERVISOR_LINES, PART_LINES = 16, 5, 8, 4
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@contextlib.contextmanager
def explained(*runs: LiveRun) -> Iterator[None]:
    """Add to what goes wrong with the runs what was seen of them, then end them: one failure stays one failure."""
    try:
        yield
    except Exception as error:
        for run in runs:
            error.add_note(describe(run))
        for run in runs:
            error.add_note(_try(f"{run.run_id} ended", lambda run=run: end(run)))
        raise


def describe(run: LiveRun) -> str:
    """Return task instances, ledger rows, processes and ends of logs, each as far as it can still be seen."""
    looks = {
        "parts": lambda: [f"{name} down" for name, part in run.airflow.parts.items() if not part.is_running],
        "instances": lambda: _instances(run),
        "ledger": lambda: _ledger(run),
        "processes": run.processes,
        "tasks": lambda: _task_logs(run),
        "supervisor": lambda: _tail(run.folder / "supervisor.log", SUPERVISOR_LINES),
        "scheduler": lambda: _tail(
            run.airflow.parts["scheduler"].log, SCHEDULER_LINES, run.run_id, "SchedulerJobRunner"
        ),
        "api-server": lambda: _tail(run.airflow.parts["api-server"].log, PART_LINES),
    }
    return "\n".join([f"--- {run.dag_id} / {run.run_id}", *(_try(name, look) for name, look in looks.items())])


def end(run: LiveRun) -> str:
    """End the run in Airflow, then its supervisor and whatever is left of its processes; return what was left.

    What the ledger still says of a supervisor that was killed is taken back by whoever asks next.
    """
    run.open()
    if run.airflow.run_state(run.dag_id, run.run_id) not in {"success", "failed"}:
        run.airflow.mark_run(run.dag_id, run.run_id, "failed")
    left = run.live_processes()
    for process in left:
        with contextlib.suppress(psutil.Error):  # it ended a moment ago
            if "airflow_tf.supervisor" in process.cmdline():
                process.terminate()
    _, stubborn = psutil.wait_procs(left, run.grace_seconds + AFTERMATH_SECONDS)
    for process in stubborn:
        process.kill()
    psutil.wait_procs(stubborn, AFTERMATH_SECONDS)
    return f"{len(left)} processes, of which {len(stubborn)} were killed; devices: {run.devices()}"


def _try(name: str, look: Callable[[], object]) -> str:
    """Return what is seen, or why it cannot be seen: the failure that is being explained comes first."""
    try:
        found = look()
    except Exception as error:  # noqa: BLE001 (Airflow, the ledger or a process may be what is broken)
        found = f"not to be had: {error!r}"
    lines = found if isinstance(found, list) else [str(found)]
    return "\n  ".join([f"{name}:", *(str(line)[:LINE_CHARACTERS] for line in lines)])


def _instances(run: LiveRun) -> list[str]:
    columns = ("state", "try_number", "pid", "queued_when", "start_date", "end_date")
    return [
        f"{name}: " + ", ".join(f"{column} {row[column]}" for column in columns)
        for name, row in sorted(run.instances().items())
    ]


def _ledger(run: LiveRun) -> list[str]:
    tables = [table for table in Base.metadata.sorted_tables if "gang_key" in table.columns]
    return run.home.ledger.read(
        lambda session, _: [
            f"{table.name} {tuple(row)}"
            for table in tables
            for row in session.execute(select(table).where(table.c.gang_key == run.key.key))
        ]
    )


def _task_logs(run: LiveRun) -> list[str]:
    """Return the ends of the logs of each instance's last two tries."""
    found = []
    for name, row in sorted(run.instances().items()):
        for number in range(max(1, row["try_number"] - 1), row["try_number"] + 1):
            path = run.log_path(row["task_id"], number, row["map_index"])
            found += [f"{name}, try {number}: {_event(line)}" for line in _tail(path, TASK_LINES)]
    return found


def _event(line: str) -> str:
    """Return the parts of a task's log line that are worth their room."""
    try:
        fields = json.loads(line)
    except ValueError:  # cut off where the task was killed
        return line
    return " ".join(str(fields.get(name, "")) for name in ("timestamp", "level", "event"))


def _tail(path: Path, count: int, *words: str) -> list[str]:
    """Return the last lines in which all the words are."""
    if not path.exists():
        return []
    lines = _COLOURS.sub("", path.read_text(errors="replace")).splitlines()
    return [line for line in lines if all(word in line for word in words)][-count:]
