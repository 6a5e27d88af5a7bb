"""What only a ledger in a file has: a folder, a file system, SQLite's settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import text

from airflow_tf.core.errors import LedgerError, LedgerUnavailableError
from airflow_tf.core.ledger import Granted, Refused
from airflow_tf.ledger import open_ledger
from tests.ledger.conftest import FakeTime, devices


class Mount(NamedTuple):
    mountpoint: str
    fstype: str


@dataclass
class MovingTime(FakeTime):
    """A clock that goes on with each look at it."""

    step_seconds: float = 0.0

    def clock(self):
        def look():
            self.seconds += self.step_seconds
            return self.seconds

        return replace(super().clock(), now=look)


@pytest.fixture
def time():
    return MovingTime()


@pytest.fixture
def database_url(sqlite_url) -> str:
    return sqlite_url


@pytest.fixture
def file(sqlite_url) -> Path:
    return Path(sqlite_url.removeprefix("sqlite:///"))


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_network_file_system_is_refused(ledger_settings, monkeypatch, kind):
    mounts = [Mount("/", "ext4"), Mount(str(ledger_settings.home.parent), kind)]
    monkeypatch.setattr("airflow_tf.ledger.location.psutil.disk_partitions", lambda **_: mounts)
    with pytest.raises(LedgerError, match=rf"network file system \({kind}\)"):
        open_ledger(ledger_settings)


def test_a_file_that_is_no_database_is_refused(ledger_settings, file):
    file.parent.mkdir()
    file.write_bytes(b"something else entirely" * 100)
    with pytest.raises(LedgerError, match="not a database"):
        open_ledger(ledger_settings)


def test_a_folder_that_cannot_be_made_is_a_clear_error(ledger_settings, file):
    file.parent.write_text("a file where the folder should be")
    with pytest.raises(LedgerUnavailableError, match="cannot make the ledger's folder"):
        open_ledger(ledger_settings)


def test_the_folder_is_private_and_readers_and_a_writer_go_on_beside_each_other(ledger, file):
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert ledger.read(lambda session, _: session.connection().exec_driver_sql("PRAGMA journal_mode").scalar()) == "wal"


def test_what_outlives_its_host_is_synced_and_what_does_not_is_not(ledger):
    def synchronous(work):
        return work.session.scalar(text("PRAGMA synchronous"))

    found = [ledger._transactions.change(synchronous, is_passing=passing) for passing in (False, True, False)]
    assert found == [2, 1, 2]  # FULL, NORMAL


def test_a_reservation_that_expires_while_another_claims_is_there_or_not(reserve, ledger, time):
    answers = set()
    for looks in range(1, 9):
        time.step_seconds = 0.0
        reserve(f"flights {looks}", [0], devices(1))
        time.seconds += 60.05 - looks * 0.1
        time.step_seconds = 0.1
        answer = reserve(f"trains {looks}", [0], devices(1))
        answers.add(type(answer))
        time.seconds += 600  # all that is reserved or waits is over
    assert answers == {Granted, Refused}
