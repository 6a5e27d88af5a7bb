"""A ledger of an earlier version keeps its rows when it is migrated."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from airflow_tf.core.identity import GangKey, View
from airflow_tf.core.states import AttemptState, MemberState
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.read import LedgerReader
from tests.ledger.conftest import HOST, devices, migrated_to, writing

AT = "2026-10-03T11:00:00+00:00"
FIRST_ROWS = """
    INSERT INTO hosts VALUES ('machine-place', 'machine', 'gpu-host', 'boot-1', :at);
    INSERT INTO gangs VALUES
        (:gang, 'x', 'flights', 'run x', 'train', -1, 2, '/run', :at, 4711, NULL, NULL, NULL);
    INSERT INTO reservations VALUES (7, :gang, 'machine-place', :at);
    INSERT INTO members VALUES
        (3, 7, :gang, 'machine-place', 0, 'confirmed', 'boot-1', 900.0, 800.0, 4711, :at, :at),
        (4, 7, :gang, 'machine-place', 1, 'reserved', 'boot-1', 1050.0, NULL, NULL, :at, :at);
    INSERT INTO devices VALUES
        ('machine-place', 'cpu-0', 'cpu', 'cpu 0', 0, '-1', NULL, 'free', '', true, :at, 3),
        ('machine-place', 'cpu-1', 'cpu', 'cpu 1', 1, '-1', NULL, 'free', '', true, :at, 4),
        ('machine-place', 'cpu-2', 'cpu', 'cpu 2', 2, '-1', NULL, 'free', '', true, :at, NULL);
    INSERT INTO generations VALUES (:gang, 0, 1, 1, :at);
    INSERT INTO views VALUES (:gang, 0, 'ti', 1, 1, 'boot-1', 700.0, :at);
    INSERT INTO attempts VALUES
        (:gang, 0, 1, 1, 3, 'token', 'running', 99, 7, :at, :at, NULL, 'none', '', NULL, NULL, '{}')
"""


@pytest.fixture
def first_version(ledger_settings):
    """Rows as revision 0001 had them."""
    url = ledger_settings.ledger_url
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(mode=0o700)
    migrated_to(url, "0001")
    with writing(url) as connection:
        ledger_id = connection.scalar(text("SELECT value FROM meta WHERE key = 'ledger_id'"))
        key = GangKey(ledger_id, "flights", "run x", "train")
        for statement in FIRST_ROWS.split(";"):
            connection.execute(text(statement), {"gang": key.key, "at": AT})
        for table, used in (("reservations", 7), ("members", 4)) if url.startswith("postgresql") else ():
            connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), {used})"))
    return key


def test_0001_keeps_holders_attempts_and_views(first_version, ledger_settings, time):
    ledger = open_ledger(ledger_settings, clock=time.clock())
    assert ledger.ledger_id == first_version.installation
    kept, reserved = sorted(LedgerReader(ledger).reservations(), key=lambda row: row.replica)
    assert (kept.devices, kept.state, kept.share_percent) == (("cpu-0",), "confirmed", 100)
    assert kept.is_suspect  # nothing was heard of its supervisor since
    assert (reserved.devices, reserved.expires_in_seconds) == (("cpu-1",), 50.0)
    assert [row.seen for row in LedgerReader(ledger).devices()] == [AT] * 3
    record = ledger.replicas(first_version)[0]
    assert (record.generation, record.attempts, record.outcome, record.watched_seconds) == (1, 1, None, 300.0)
    assert ledger.seconds_waiting(first_version, 0, View("ti", 1, 1)) == 300.0
    ledger.close()


def test_0001_goes_on_after_the_migration(first_version, ledger_settings, time, reserve):
    ledger = open_ledger(ledger_settings, clock=time.clock())
    ledger.register_host(HOST, devices(3))
    (other,) = reserve("other", [0], devices(3)).members
    assert other.devices[0].uuid == "cpu-2"
    assert other.fence > 7
    ledger.confirm(ledger.member(first_version, 1), 4711)
    assert ledger.member(first_version, 1).state == MemberState.CONFIRMED
    ledger.revoke(ledger.member(first_version, 0), "it died")
    assert ledger.replicas(first_version)[0].outcome.state is AttemptState.LOST
    ledger.close()
