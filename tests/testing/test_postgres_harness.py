from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from airflow_tf.core.errors import AirflowTfError
from airflow_tf.testing import postgres
from airflow_tf.testing.postgres import URL_VARIABLE, PostgresServer
from tests.testing.servers import eventually, servers_of


def ask(url: str, statement: str) -> object:
    engine = create_engine(url, connect_args={"connect_timeout": 2})
    try:
        with engine.connect() as connection:
            return connection.execute(text(statement)).scalar()
    finally:
        engine.dispose()


def shared_memory_of(pids: set[int]) -> set[int]:
    """Return those of the pids whose System V shared memory is still there; other servers have theirs, too."""
    rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()]
    creator = rows[0].index("cpid")
    return {int(row[creator]) for row in rows[1:]} & pids


def test_databases_are_empty_and_apart(postgres_server: PostgresServer) -> None:
    first, second = postgres_server.create_database(), postgres_server.create_database()
    assert ask(first, "SELECT current_database()") != ask(second, "SELECT current_database()")
    assert ask(first, "SHOW server_encoding") == "UTF8"
    postgres_server.drop_database(first)
    postgres_server.drop_database(second)
    with pytest.raises(OperationalError, match="does not exist"):
        ask(first, "SELECT 1")


def test_only_its_owner_knows_the_password_and_only_loopback_listens(postgres_server: PostgresServer) -> None:
    with pytest.raises(OperationalError, match="authentication failed"):
        ask(postgres_server.url().replace(":", ":x", 2).replace("x//", "//"), "SELECT 1")
    server = psutil.Process(postgres_server.pid)
    assert {connection.laddr.ip for connection in server.net_connections("inet")} == {"127.0.0.1"}
    assert server.net_connections("unix") == []
    password = postgres_server.url().rpartition("@")[0].rpartition(":")[2]
    assert password not in " ".join(server.cmdline())


def test_a_paused_server_does_not_answer_until_it_is_resumed(postgres_server: PostgresServer) -> None:
    postgres_server.pause()
    try:
        with pytest.raises(OperationalError, match="timeout"):
            ask(postgres_server.url(), "SELECT 1")
    finally:
        postgres_server.resume()
    assert ask(postgres_server.url(), "SELECT 1") == 1


def test_data_survive_a_kill_and_nothing_survives_a_stop() -> None:
    with PostgresServer({"work_mem": "5MB"}) as server:
        folder, pids = server.folder, {server.pid}
        assert shared_memory_of(pids) == pids
        url = server.create_database()
        assert ask(url, "SHOW work_mem") == "5MB"
        server.kill()
        with pytest.raises(OperationalError, match="refused"):
            ask(url, "SELECT 1")
        server.launch()
        assert ask(url, "SELECT 1") == 1
        assert servers_of(folder)
        pids.add(server.pid)
        server.pause()
    assert servers_of(folder) == []
    assert not folder.exists()
    assert shared_memory_of(pids) == set()


def test_it_dies_with_a_killed_owner_and_the_next_server_removes_the_folder() -> None:
    script = (
        "from airflow_tf.testing.postgres import PostgresServer\n"
        "server = PostgresServer().start()\n"
        "print(server.folder, flush=True)\n"
        "input()\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    assert servers_of(folder)
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert eventually(lambda: servers_of(folder) == [])
    with PostgresServer():
        assert not folder.exists()


def test_a_machine_without_its_programs_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "_DEBIAN", tmp_path)
    with pytest.raises(AirflowTfError, match="apt-get install postgresql"):
        PostgresServer().start()
    with pytest.raises(AirflowTfError, match="not running"):
        _ = PostgresServer().folder


def test_a_server_that_does_not_start_shows_its_log() -> None:
    with pytest.raises(AirflowTfError, match="no_such_setting"):
        PostgresServer({"no_such_setting": "1"}).start()


def test_run_gives_the_url_to_the_command_and_returns_its_code() -> None:
    code = f"import os, sys; sys.exit(7 if os.environ['{URL_VARIABLE}'].startswith('postgresql+psycopg://') else 1)"
    command = [sys.executable, "-m", "airflow_tf.testing.postgres", "run", "--", sys.executable, "-c", code]
    assert subprocess.run(command, timeout=120, check=False).returncode == 7
