"""Ledgers to test: one parameter per database, so that another one is added by its URL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from airflow_tf.core.devices import Device, DeviceRequest, Health, Host, Reading
from airflow_tf.core.identity import GangKey
from airflow_tf.core.settings import Settings
from airflow_tf.ledger import Clock, Ledger, open_ledger
from airflow_tf.ledger.engine import Database
from airflow_tf.ledger.location import open_database
from airflow_tf.ledger.migrate import MIGRATIONS
from airflow_tf.testing.postgres import PostgresServer

HOST = Host("machine-place", "gpu-host", "boot-1")


@dataclass
class FakeTime:
    """A clock that moves when told to."""

    seconds: float = 1000.0
    epoch: str = "boot-1"

    def clock(self) -> Clock:
        start = datetime(2026, 10, 3, 12, 0, tzinfo=UTC)
        return Clock(
            self.epoch,
            lambda: self.seconds,
            lambda: start + timedelta(seconds=self.seconds - 1000.0),
            host_now=lambda: self.seconds,
        )


def devices(count: int, kind: str = "cpu", memory_bytes: int | None = None) -> list[Reading]:
    return [
        Reading(Device(f"{kind}-{n}", kind, f"{kind} {n}", n, "-1", memory_bytes), Health.FREE) for n in range(count)
    ]


def request(per_replica: int = 1, **others: object) -> DeviceRequest:
    return replace(DeviceRequest(per_replica=per_replica), **others)


@contextlib.contextmanager
def begun(database: Database) -> Iterator[Connection]:
    """Hold a writing transaction and commit it."""
    with database.plain.connect() as connection:
        database.begin(connection.connection.driver_connection, None, is_passing=False).clock()
        yield connection
        connection.commit()


@contextlib.contextmanager
def writing(url: str, deadline_seconds: float = 60.0) -> Iterator[Connection]:
    """Hold a writing transaction of another client."""
    database = open_database(url, deadline_seconds)
    try:
        with begun(database) as connection:
            yield connection
    finally:
        database.plain.dispose()


@pytest.fixture
def sqlite_url(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 'private' / 'ledger.db'}"


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """URL of an empty database: the contract holds on both."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def ledger_settings(settings: Settings, database_url: str) -> Settings:
    return replace(settings, ledger_url=database_url, reservation_seconds=60.0)


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def ledger(ledger_settings: Settings, time: FakeTime) -> Iterator[Ledger]:
    opened = open_ledger(ledger_settings, clock=time.clock())
    yield opened
    opened.close()


@pytest.fixture
def gang(ledger: Ledger) -> Callable[[str], GangKey]:
    return lambda name: GangKey(ledger.ledger_id, name, "run x", "train")


@pytest.fixture
def reserve(ledger: Ledger, gang: Callable[[str], GangKey]) -> Callable[..., object]:
    """Reserve for a gang by its name."""

    def call(name: str, replicas: Sequence[int], readings: Sequence[Reading], **demands: object) -> object:
        return ledger.reserve(gang(name), request(**demands), replicas, HOST, readings)

    return call


def migrated_to(url: str, revision: str) -> None:
    """Make or migrate a ledger as an earlier version did."""
    database = open_database(url, deadline_seconds=10.0)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    try:
        with begun(database) as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
    finally:
        database.plain.dispose()
