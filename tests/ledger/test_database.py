"""The database behind a ledger: who may make it, how it is migrated, and what happens when it does not answer."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
import time
from dataclasses import replace
from typing import NamedTuple

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from airflow_tf.core.errors import AirflowTfError, LedgerError, LedgerUnavailableError
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.engine import Transactions
from airflow_tf.ledger.location import sqlite_path
from airflow_tf.ledger.migrate import HEAD, MIGRATIONS, VERSION_TABLE
from airflow_tf.ledger.schema import Base
from tests.ledger.conftest import HOST, devices

SPAWN = multiprocessing.get_context("spawn")


class Mount(NamedTuple):
    mountpoint: str
    fstype: str


def file_of(settings):
    return sqlite_path(settings.ledger_url)[1]


def open_at_once(settings, barrier, answers):
    barrier.wait(timeout=60)
    try:
        answers.put(open_ledger(settings).ledger_id)
    except AirflowTfError as error:
        answers.put(repr(error))


def test_first_openers_at_the_same_time_make_one_ledger(ledger_settings, no_processes_left):
    count = 4
    barrier, answers = SPAWN.Barrier(count), SPAWN.Queue()
    processes = [SPAWN.Process(target=open_at_once, args=(ledger_settings, barrier, answers)) for _ in range(count)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(timeout=30)
    assert len(set(found)) == 1
    assert len(found[0]) == 16
    assert open_ledger(ledger_settings).ledger_id == found[0]


def test_the_migrations_make_what_the_models_say(ledger, ledger_settings):
    transactions = Transactions(sqlite_path(ledger_settings.ledger_url)[0])
    with transactions.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    transactions.close()


def test_head_is_the_newest_migration():
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_a_migration_that_fails_leaves_nothing_and_can_be_repeated(ledger_settings, monkeypatch):
    class KilledError(Exception):
        pass

    def fail(*_):
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr("alembic.op.create_index", fail)
        with pytest.raises(KilledError):
            open_ledger(ledger_settings)
    with sqlite3.connect(file_of(ledger_settings)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    open_ledger(ledger_settings).close()


def test_a_ledger_of_a_newer_version_is_refused(ledger, ledger_settings):
    with sqlite3.connect(file_of(ledger_settings)) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(LedgerError, match=r"schema 9999.* newer airflow_tf"):
        open_ledger(ledger_settings)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_network_file_system_is_refused(ledger_settings, monkeypatch, kind):
    mounts = [Mount("/", "ext4"), Mount(str(ledger_settings.home.parent), kind)]
    monkeypatch.setattr("airflow_tf.ledger.location.psutil.disk_partitions", lambda **_: mounts)
    with pytest.raises(LedgerError, match=rf"network file system \({kind}\)"):
        open_ledger(ledger_settings)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("not a url", "not a database URL"),
        ("postgresql://user:secret@host/db", "no other database"),
        ("sqlite://", "absolute path"),
        ("sqlite:///relative.db", "absolute path"),
    ],
)
def test_urls_that_name_no_sqlite_file_are_refused_without_their_password(settings, url, why):
    with pytest.raises(LedgerError, match=why) as caught:
        open_ledger(replace(settings, ledger_url=url))
    assert "secret" not in str(caught.value)


def test_a_locked_database_ends_in_an_error_within_the_deadline(ledger, ledger_settings):
    patient = open_ledger(ledger_settings, deadline_seconds=0.5)
    holder = sqlite3.connect(file_of(ledger_settings), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    start = time.monotonic()
    with pytest.raises(LedgerUnavailableError, match=r"locked for 0\.5 s"):
        patient.register_host(HOST, devices(1))
    assert time.monotonic() - start < 5
    assert patient.confirmed_on(HOST) == []  # reading goes on
    holder.execute("ROLLBACK")
    patient.register_host(HOST, devices(1))
    holder.close()
    patient.close()


def test_a_short_lock_is_waited_for(ledger, ledger_settings):
    holder = sqlite3.connect(file_of(ledger_settings), isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, lambda: holder.execute("COMMIT"))
    timer.start()
    ledger.register_host(HOST, devices(1))
    timer.join()
    holder.close()


def test_a_file_that_is_no_database_is_refused(ledger_settings):
    file = file_of(ledger_settings)
    file.parent.mkdir()
    file.write_bytes(b"something else entirely" * 100)
    with pytest.raises(LedgerError, match="not a database"):
        open_ledger(ledger_settings)


def test_a_folder_that_cannot_be_made_is_a_clear_error(ledger_settings):
    file_of(ledger_settings).parent.write_text("a file where the folder should be")
    with pytest.raises(LedgerUnavailableError, match="cannot make the ledger's folder"):
        open_ledger(ledger_settings)


def test_the_folder_is_private_and_outcomes_are_synced(ledger, ledger_settings):
    assert file_of(ledger_settings).parent.stat().st_mode & 0o777 == 0o700
    assert ledger.read(lambda session: session.connection().exec_driver_sql("PRAGMA synchronous").scalar()) == 2
    assert ledger.read(lambda session: session.connection().exec_driver_sql("PRAGMA journal_mode").scalar()) == "wal"


def test_a_forked_child_opens_connections_of_its_own(ledger):
    ledger.register_host(HOST, devices(1))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ledger.register_host(HOST, devices(2))
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    ledger.register_host(HOST, devices(3))


def test_every_thread_may_use_it(ledger):
    errors = []

    def work():
        try:
            for _ in range(5):
                ledger.register_host(HOST, devices(2))
        except AirflowTfError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_the_same_ledger_has_the_same_id(ledger, ledger_settings):
    assert open_ledger(ledger_settings).ledger_id == ledger.ledger_id
