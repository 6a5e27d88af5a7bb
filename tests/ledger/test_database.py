"""The database behind a ledger, the same for every kind: how it is migrated, and what happens when it is locked."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from airflow_tf.core.errors import AirflowTfError, LedgerError, LedgerUnavailableError
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.migrate import HEAD, MIGRATIONS, VERSION_TABLE
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.ledger.schema import Base
from tests.ledger.conftest import HOST, devices, writing

SPAWN = multiprocessing.get_context("spawn")


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
    def difference(session, _):
        options = {"version_table": VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(session.connection(), opts=options)
        return compare_metadata(context, Base.metadata)

    assert ledger.read(difference) == []


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
    with writing(ledger_settings.ledger_url) as connection:
        assert inspect(connection).get_table_names() == []
    open_ledger(ledger_settings).close()


def test_a_ledger_of_a_newer_version_is_refused(ledger, ledger_settings):
    with writing(ledger_settings.ledger_url) as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(LedgerError, match=r"schema 9999.* newer airflow_tf"):
        open_ledger(ledger_settings)


def test_a_locked_database_ends_in_an_error_within_the_deadline(ledger, ledger_settings):
    hurried = open_ledger(ledger_settings, deadline_seconds=0.5)
    with writing(ledger_settings.ledger_url):
        start = time.monotonic()
        with pytest.raises(LedgerUnavailableError, match=r"locked for 0\.5 s"):
            hurried.register_host(HOST, devices(1))
        assert time.monotonic() - start < 5
        assert hurried.confirmed_on(HOST) == []  # reading goes on
    hurried.register_host(HOST, devices(1))
    hurried.close()


def test_a_locked_new_database_ends_in_an_error_within_the_deadline(ledger_settings):
    with writing(ledger_settings.ledger_url):
        start = time.monotonic()
        with pytest.raises(LedgerUnavailableError, match=r"locked for 0\.5 s"):
            open_ledger(ledger_settings, deadline_seconds=0.5)
        assert time.monotonic() - start < 5
    open_ledger(ledger_settings).close()


def test_a_short_lock_is_waited_for(ledger, ledger_settings):
    with contextlib.ExitStack() as held, ThreadPoolExecutor(1) as other:
        held.enter_context(writing(ledger_settings.ledger_url))
        waiting = other.submit(ledger.register_host, HOST, devices(1))
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.3)
        held.close()
        waiting.result(timeout=10)


def test_what_fails_halfway_leaves_nothing(ledger, reserve):
    def fail(session, clock):
        session.execute(text("DELETE FROM holdings"))
        raise LedgerError("halfway")

    reserve("flights", [0], devices(2))
    with pytest.raises(LedgerError, match="halfway"):
        ledger._transactions.write(fail)
    assert len(LedgerReader(ledger).devices()[0].holders) == 1


def test_a_reader_sees_one_state_whatever_is_written_meanwhile(ledger):
    ledger.register_host(HOST, devices(1))

    def count_twice(session, _):
        first = session.scalar(text("SELECT count(*) FROM devices"))
        other = threading.Thread(target=ledger.register_host, args=(HOST, devices(5)))
        other.start()
        other.join(timeout=10)
        return first, session.scalar(text("SELECT count(*) FROM devices"))

    assert ledger.read(count_twice) == (1, 1)
    assert len(LedgerReader(ledger).devices()) == 5


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("not a url s3cret", "not a database URL"),
        ("postgresql://user:s3cret@host:port/db", "not a database URL"),
        ("postgresql+psycopg2://user:s3cret@host/db", r"kind postgresql\+psycopg2"),
        ("mysql://user:s3cret@host/db", "kind mysql"),
        ("postgresql://user:s3cret@host", "no database of the server host"),
        ("sqlite://", "absolute path"),
        ("sqlite:///relative.db", "absolute path"),
    ],
)
def test_urls_that_name_no_ledger_are_refused_without_their_secrets(settings, url, why):
    with pytest.raises(LedgerError, match=why) as caught:
        open_ledger(replace(settings, ledger_url=url))
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


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
