"""A gang whose ledger is on a server: its supervisor gets the password, and nobody else."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from sqlalchemy.engine import make_url

from airflow_tf.core.errors import SupervisorLostError
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import AttemptState
from airflow_tf.testing.postgres import PostgresServer
from tests.supervisor.harness import Gang, is_alive, kill, wait_for

PROGRAM = """
import os, time
print("pid", os.getpid(), flush=True)
while not os.path.exists(os.environ["AIRFLOW_TF_CHECKPOINT_DIR"] + "/end"):
    time.sleep(0.05)
"""


@pytest.fixture
def gang(
    settings: Settings, tmp_path: Path, postgres_server: PostgresServer, no_processes_left: None
) -> Iterator[Gang]:
    url = postgres_server.create_database()
    made = Gang(replace(settings, ledger_url=url), tmp_path)
    yield made
    pid = made.supervisor_pid()
    if pid is not None:
        kill(pid, signal.SIGTERM)
    wait_for(lambda: made.supervisor_pid() is None, "the supervisor's end")
    made.ledger.close()
    postgres_server.drop_database(url)


def files_with(secret: str, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def test_a_gang_lives_on_postgresql_and_its_password_is_in_no_file_argument_or_environment(
    gang: Gang, tmp_path: Path
) -> None:
    secret = make_url(gang.settings.ledger_url).password
    assert secret
    watch = gang.start(PROGRAM, tries_left=1)
    pid, supervisor = int(watch.line("pid ")), gang.supervisor_pid()
    assert supervisor is not None
    for process in (psutil.Process(pid), psutil.Process(supervisor)):
        assert secret not in " ".join(process.cmdline())
        assert secret not in " ".join(process.environ().values())

    kill(supervisor, signal.SIGKILL)
    with pytest.raises(SupervisorLostError):
        watch.end()
    wait_for(lambda: not is_alive(pid), "the replica's end")

    again = gang.start(PROGRAM, try_number=2, position=watch.shown[-1])
    assert int(again.line("pid ")) != pid
    wait_for(lambda: list(gang.folder.rglob("checkpoints")), "the checkpoint folder")
    for folder in gang.folder.rglob("checkpoints"):
        (folder / "end").touch()
    assert again.end().state is AttemptState.SUCCEEDED
    assert gang.ledger.replicas(gang.key)[0].attempts == 2
    assert files_with("replica", tmp_path) != []
    assert files_with(secret, tmp_path) == []
