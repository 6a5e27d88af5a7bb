"""^C in a terminal. No scheduler runs beside it: that would take the run of ``dags test`` for one of its own."""

from __future__ import annotations

import os
import pty
import sys

import pytest

from airflow_tf.ledger.read import LedgerReader
from tests.airflow.home import AirflowHome
from tests.supervisor.harness import is_alive, wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow, pytest.mark.slow]


@pytest.mark.usefixtures("no_processes_left")
@pytest.mark.parametrize(
    "words",
    [
        ("tasks", "test", "flights", "train", "--map-index", "0", "--task-params", '{"epochs": 500}'),
        ("dags", "test", "flights", "--conf", '{"epochs": 500}'),
    ],
    ids=["tasks", "dags"],
)
def test_control_c_in_a_terminal(home: AirflowHome, words: tuple[str, ...]) -> None:
    before = home.versions()
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
    assert home.versions() == before
    home.run("dags", "test", "flights", "--conf", '{"epochs": 1}')
    home.assert_one_whole_result(before)
