"""What only a ledger on a server has: another host's clock, connections that break, a server that hangs, secrets."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from psycopg import ClientCursor
from sqlalchemy import text
from sqlalchemy.engine import make_url

from airflow_tf.core.errors import LedgerError, LedgerUnavailableError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.states import MemberState
from airflow_tf.ledger import hosts, open_ledger, postgres
from airflow_tf.ledger.location import open_database
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.ledger.schema import MemberEntry
from tests.ledger.conftest import HOST, devices, request, writing


@pytest.fixture
def database_url(postgres_url) -> str:
    return postgres_url


@pytest.fixture
def hurried(ledger, ledger_settings):
    """A ledger of a client whose patience ends after a second, on the server's clock."""
    opened = open_ledger(ledger_settings, deadline_seconds=1.0)
    yield opened
    opened.close()


def setting(name):
    return lambda session, _: session.scalar(text(f"SHOW {name}"))


def test_time_is_the_server_s_and_moves_on(hurried):
    def look(session, clock):
        return clock.epoch, clock.now(), session.scalar(text("SELECT extract(epoch FROM now())"))

    (epoch, first, begun), (again, second, _) = hurried.read(look), hurried.read(look)
    assert epoch == again == "postgresql"
    assert second > first >= float(begun)


def test_the_time_of_a_writer_is_read_after_it_got_the_lock(hurried, ledger_settings):
    with ThreadPoolExecutor(1) as other:
        with writing(ledger_settings.ledger_url) as connection:
            waiting = other.submit(hurried._transactions.write, lambda _, clock: clock.now())
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.3)
            released = float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
        assert waiting.result(timeout=10) >= released


def test_a_reservation_survives_the_boot_of_another_host(hurried, monkeypatch):
    key = GangKey(hurried.ledger_id, "flights", "run x", "train")
    hurried.reserve(key, request(), [0], HOST, devices(1))
    monkeypatch.setattr("airflow_tf.ledger.sqlite.boot_clock", lambda: pytest.fail("no host's clock counts"))
    hurried.register_host(replace(HOST, host_id="other-place", boot_id="another boot"), devices(1))
    assert hurried.member(key, 0).state == MemberState.RESERVED
    (row,) = LedgerReader(hurried).reservations()
    assert 0 < row.expires_in_seconds <= 60


def test_a_reservation_expires_by_the_server_s_clock(ledger_settings):
    ledger = open_ledger(replace(ledger_settings, reservation_seconds=0.05))
    key = GangKey(ledger.ledger_id, "flights", "run x", "train")
    ledger.reserve(key, request(), [0], HOST, devices(1))
    deadline = time.monotonic() + 10
    while ledger.member(key, 0) is not None:
        assert time.monotonic() < deadline
    ledger.close()


def test_a_claim_is_timed_by_the_server_s_clock(hurried, ledger_settings):
    key = GangKey(hurried.ledger_id, "flights", "run x", "train")
    first, second = hurried.reserve(key, request(), [0, 1], HOST, devices(2)).members
    reserved = hurried.read(lambda session, clock: (row(session, first), clock))
    hurried.confirm(first, 17, second)
    hurried.confirm(second, 17)  # the answer was lost
    (held, clock) = hurried.read(lambda session, clock: (row(session, second), clock))
    assert reserved[0].expires_seconds == pytest.approx(clock.now() + 60, abs=30)
    assert reserved[0].created_at[:13] in {clock.wall_text()[:13], reserved[1].wall_text()[:13]}
    assert len(reserved[0].created_at) == len(clock.wall_text())
    assert held.held_seconds == held.renewed_seconds <= clock.now()
    assert held.confirmed_seconds == pytest.approx(clock.host_now(), abs=30)
    hurried.release(first, second)
    assert LedgerReader(hurried).reservations() == []


def row(session, member):
    found = session.query(MemberEntry).filter_by(reservation_id=member.reservation_id, replica=member.replica).one()
    session.expunge(found)
    return found


def test_a_claim_takes_four_round_trips(hurried, monkeypatch):
    sent: list[object] = []

    def counted(driver):
        sent.append(driver)
        return ClientCursor(driver)

    key = GangKey(hurried.ledger_id, "flights", "run x", "train")
    look = tuple(devices(3))
    hurried.register_host(HOST, look)
    monkeypatch.setattr(postgres, "_client_cursor", counted)
    monkeypatch.setattr(postgres._Writing, "commit", lambda _: pytest.fail("another one"))
    monkeypatch.setattr(hosts, "record", lambda *_: False)  # at most once a second somebody notes that it was looked at
    first, *others = hurried.reserve(key, request(), [0, 1, 2], HOST, look).members
    assert len(sent) == 2
    hurried.confirm(first, 17, *others)
    hurried.release(first, *others)
    assert len(sent) == 4


def test_isolation_and_durability_do_not_depend_on_the_server_s_defaults(ledger_settings, postgres_server):
    name = make_url(ledger_settings.ledger_url).database
    postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    postgres_server.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    ledger = open_ledger(ledger_settings)
    assert ledger._transactions.write(setting("transaction_isolation")) == "read committed"
    assert ledger._transactions.write(setting("synchronous_commit")) == "on"
    quick = ledger._transactions.change(lambda work: setting("synchronous_commit")(work.session, None), is_passing=True)
    assert quick == "off"
    assert ledger.read(setting("transaction_isolation")) == "repeatable read"
    assert ledger.read(setting("transaction_read_only")) == "on"
    ledger.close()


def test_a_silent_client_does_not_keep_the_lock(hurried, ledger_settings):
    database = open_database(ledger_settings.ledger_url, deadline_seconds=0.3)
    silent = database.plain.connect()
    database.begin(silent.connection.driver_connection, None, is_passing=False).clock()
    hurried.register_host(HOST, devices(1))  # the server has ended the other one's session
    silent.invalidate()
    silent.close()
    database.plain.dispose()


def test_a_lock_that_another_program_holds_on_a_table_ends_in_an_error(hurried, postgres_server, ledger_settings):
    with writing(ledger_settings.ledger_url) as connection:
        connection.execute(text("LOCK TABLE devices IN ACCESS EXCLUSIVE MODE"))
        start = time.monotonic()
        with pytest.raises(LedgerUnavailableError, match="locked for 1 s"):
            LedgerReader(hurried).devices()
        assert time.monotonic() - start < 5


def test_a_statement_that_takes_too_long_is_ended(hurried):
    start = time.monotonic()
    with pytest.raises(LedgerUnavailableError, match="statement timeout"):
        hurried.read(lambda session, _: session.execute(text("SELECT pg_sleep(60)")))
    assert time.monotonic() - start < 5


def test_a_server_that_hangs_ends_in_an_error_and_is_used_again_afterwards(hurried, ledger_settings, postgres_server):
    hurried.register_host(HOST, devices(1))
    postgres_server.pause()
    try:
        start = time.monotonic()
        with pytest.raises(LedgerUnavailableError, match="does not answer"):  # over a connection that was open
            hurried.register_host(HOST, devices(2))
        with pytest.raises(LedgerUnavailableError, match="does not answer"):  # over a new one
            open_ledger(ledger_settings, deadline_seconds=1.0)
        assert time.monotonic() - start < 15
    finally:
        postgres_server.resume()
    hurried.register_host(HOST, devices(3))
    assert len(LedgerReader(hurried).devices()) == 3


def test_a_server_that_is_down_ends_in_an_error_and_is_used_again_afterwards(hurried, ledger_settings, postgres_server):
    hurried.register_host(HOST, devices(1))
    postgres_server.kill()
    try:
        start = time.monotonic()
        with pytest.raises(LedgerUnavailableError, match="does not answer"):
            hurried.register_host(HOST, devices(2))
        with pytest.raises(LedgerUnavailableError, match="does not answer"):
            open_ledger(ledger_settings, deadline_seconds=1.0)
        assert time.monotonic() - start < 15
    finally:
        postgres_server.launch()
    hurried.register_host(HOST, devices(3))
    assert len(LedgerReader(hurried).devices()) == 3


def test_a_call_waits_for_a_server_that_is_started_again(ledger_settings, postgres_server):
    ledger = open_ledger(ledger_settings, deadline_seconds=30.0)
    ledger.register_host(HOST, devices(1))
    postgres_server.kill()
    with ThreadPoolExecutor(1) as other:
        try:
            waiting = other.submit(ledger.register_host, HOST, devices(2))
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.5)
        finally:
            postgres_server.launch()
        waiting.result(timeout=40)
    ledger.close()


def test_no_descriptor_and_no_thread_is_left_by_a_call(hurried):
    import threading

    import psutil

    hurried.register_host(HOST, devices(1))
    before = psutil.Process().num_fds(), threading.active_count()
    for _ in range(20):
        hurried.register_host(HOST, devices(1))
    deadline = time.monotonic() + 10
    while (psutil.Process().num_fds(), threading.active_count()) > before:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("kind", ["postgresql", "postgresql+psycopg"])
def test_both_spellings_name_the_same_ledger(ledger, ledger_settings, kind):
    url = make_url(ledger_settings.ledger_url).set(drivername=kind).render_as_string(hide_password=False)
    opened = open_ledger(replace(ledger_settings, ledger_url=url))
    assert opened.ledger_id == ledger.ledger_id
    opened.close()


@pytest.mark.parametrize(
    "change",
    [
        {"password": "s3cret/%"},
        {"query": {"password": "s3cret/%"}},
        {"password": "s3cret/%", "database": "none"},
        {"password": "s3cret/%", "query": {"unheard_of": "s3cret/%"}},
    ],
)
def test_the_password_is_shown_nowhere(ledger_settings, change, caplog):
    caplog.set_level(logging.DEBUG)
    parts = make_url(ledger_settings.ledger_url)
    url = (parts.set(password=None) if "password" not in change else parts).set(**change)
    changed = replace(ledger_settings, ledger_url=url.render_as_string(hide_password=False))
    with pytest.raises(LedgerError) as caught:
        open_ledger(changed, deadline_seconds=0.1)
    told = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(changed)
    assert f"postgres@127.0.0.1:{parts.port}/" in str(caught.value)
    assert "s3cret" not in told


def test_a_host_without_psycopg_is_told_what_to_install(ledger_settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(LedgerError, match=r"airflow-tf\[postgres\]"):
        open_ledger(ledger_settings)


def test_a_role_that_may_not_make_tables_is_told_so(ledger_settings, postgres_server):
    postgres_server.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    try:
        url = make_url(ledger_settings.ledger_url).set(username="guest", password="guest")
        with pytest.raises(LedgerError, match="permission denied"):
            open_ledger(replace(ledger_settings, ledger_url=url.render_as_string(hide_password=False)))
    finally:
        postgres_server.execute("DROP ROLE guest")
