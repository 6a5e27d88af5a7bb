"""How fast and how fairly many processes get devices from one ledger, beside a bare all-or-nothing transaction.

Each client again and again takes 1 to 8 of 1000 devices, as one new gang of as many replicas, and gives them back. Ours
reserves, confirms and releases all of the gang, in a transaction each: with fences, the queue, and an audit of who held
what. The reference selects free devices, marks them, and later clears them, as one would write it at first: two
transactions. Neither waits between its calls, and no claim is refused: the devices suffice for all.

Each client has looked at its devices once, before the time starts: a look is the probe's work, and the reference takes
its rows for free without one. What the ledger does with a look that is new is shown in a row of its own.

Who holds what is checked beside both databases: each client locks one byte per device of a common file from after the
claim until just before it gives the device back.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import random
import struct
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from harness import SHOWN, Row, arguments, report
from sqlalchemy import Engine, create_engine, event, text

from airflow_tf.core.devices import Device, DeviceRequest, Health, Host, Reading
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted
from airflow_tf.core.settings import Settings
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.hosts import Look
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.testing.postgres import PostgresServer

CLIENTS, DEVICES, LARGEST_GANG = 32, 1000, 8
HOST = Host("machine-place", "gpu-host", "boot-1")
PROCESSES = multiprocessing.get_context("forkserver")
T = TypeVar("T")


class Client(ABC):
    """One process's way to devices."""

    def __init__(self) -> None:
        self.longest_wait = 0.0

    @abstractmethod
    def claim(self, count: int) -> tuple[list[int], Any]:
        """Take ``count`` devices; return their numbers and what :meth:`give_back` needs."""

    @abstractmethod
    def give_back(self, claimed: Any) -> None:  # noqa: ANN401 (whatever claim gave)
        """Give them back."""

    def timed(self, call: Callable[[], T]) -> T:
        """Remember how long the longest call took."""
        start = time.monotonic()
        try:
            return call()
        finally:
            self.longest_wait = max(self.longest_wait, time.monotonic() - start)


class Ours(Client):
    """Reserve, confirm and release in the ledger, each claim as a gang of its own."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._ledger = open_ledger(_settings(url))
        self._readings = _readings()
        self._claims = 0

    def claim(self, count: int) -> tuple[list[int], Any]:
        """Reserve and confirm."""
        self._claims += 1
        key = GangKey(self._ledger.ledger_id, "bench", f"{os.getpid()}-{self._claims}", "train")
        answer = self.timed(lambda: self._ledger.reserve(key, DeviceRequest(), range(count), HOST, self._readings))
        assert isinstance(answer, Granted), answer
        first, *others = answer.members
        self.timed(lambda: self._ledger.confirm(first, os.getpid(), *others))
        return [device.index for member in answer.members for device in member.devices], answer.members

    def give_back(self, claimed: Any) -> None:  # noqa: ANN401 (whatever claim gave)
        """Release."""
        self.timed(lambda: self._ledger.release(*claimed))


class Bare(Client):
    """One table; select free rows, mark them, commit; on SQLite the database's own waiting for its lock."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._engine = _bare_engine(url)
        self._select = "SELECT id FROM devices WHERE holder IS NULL ORDER BY id LIMIT :count"
        if self._engine.dialect.name == "postgresql":
            self._select += " FOR UPDATE SKIP LOCKED"

    def claim(self, count: int) -> tuple[list[int], Any]:
        """Take the first free devices, all or none."""
        return (found := self.timed(lambda: self._claim(count))), found

    def _claim(self, count: int) -> list[int]:
        with self._engine.begin() as connection:
            found = list(connection.scalars(text(self._select), {"count": count}))
            assert len(found) == count
            connection.execute(_marking(found), {"holder": os.getpid()})
        return found

    def give_back(self, claimed: Any) -> None:  # noqa: ANN401 (whatever claim gave)
        """Clear the marks."""
        self.timed(lambda: self._give_back(claimed))

    def _give_back(self, numbers: list[int]) -> None:
        with self._engine.begin() as connection:
            connection.execute(_marking(numbers), {"holder": None})


@dataclass(frozen=True)
class Result:
    """What one client did."""

    claims: int
    longest_wait: float
    overlaps: int


def work(kind: type[Client], url: str, witness: Path, barrier: Any, seconds: float, answers: Any) -> None:  # noqa: ANN401 (of a child process)
    """Claim and give back until the time is over."""
    client: Any = kind(url)  # type: ignore[call-arg]
    sizes = random.Random(os.getpid())
    claims = overlaps = 0
    with witness.open("r+b") as file:
        barrier.wait(timeout=300)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            numbers, claimed = client.claim(sizes.randint(1, LARGEST_GANG))
            overlaps += sum(not _lock(file.fileno(), fcntl.F_WRLCK, number) for number in numbers)
            claims += 1
            for number in numbers:
                _lock(file.fileno(), fcntl.F_UNLCK, number)
            client.give_back(claimed)
    answers.put(Result(claims, client.longest_wait, overlaps))


def measure(kind: type[Client], url: str, clients: int, seconds: float) -> dict[str, float]:
    """Let all clients run side by side and return the figures."""
    with tempfile.NamedTemporaryFile() as witness:
        witness.truncate(DEVICES)
        barrier, answers = PROCESSES.Barrier(clients), PROCESSES.Queue()
        given = (kind, url, Path(witness.name), barrier, seconds, answers)
        processes = [PROCESSES.Process(target=work, args=given) for _ in range(clients)]
        for process in processes:
            process.start()
        results: list[Result] = [answers.get(timeout=seconds + 300) for _ in processes]
        for process in processes:
            process.join()
    counts = [result.claims for result in results]
    return {
        "claims per second": sum(counts) / seconds,
        "longest wait for the database, s": max(result.longest_wait for result in results),
        "slowest client / fastest client": min(counts) / max(counts),
        "overlaps": sum(result.overlaps for result in results),
        "leaks": _leaks(kind, url),
    }


TARGETS = {
    "claims per second": "ratio >= 0.8",
    "longest wait for the database, s": "ours <= 1",
    "slowest client / fastest client": "ours >= 0.3",
    "overlaps": "ours <= 0",
    "leaks": "ours <= 0",
}


def main() -> None:
    """Measure both databases and print the table."""
    options = arguments("Claims of devices from one ledger by many processes")
    PROCESSES.set_forkserver_preload(["contention"])
    seconds, rows = 6.0 if options.quick else 60.0, []
    for name, databases in (("SQLite", _files()), ("PostgreSQL", _servers())):
        with databases as (bare_url, our_url):
            _prepare(bare_url, our_url)
            theirs = measure(Bare, bare_url, CLIENTS, seconds)
            ours = measure(Ours, our_url, CLIENTS, seconds)
        rows += [
            Row(name, figure, ours[figure], theirs[figure], "bare transaction", target)
            for figure, target in TARGETS.items()
        ]
    rows.append(Row("both", "CPU ms to digest a new look", _milliseconds_per_look(), 0.0, "none taken", SHOWN))
    report(rows, options.json)


@contextlib.contextmanager
def _files() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory(prefix="bench-contention-") as folder:
        yield f"sqlite:///{folder}/bare.db", f"sqlite:///{folder}/ledger.db"


@contextlib.contextmanager
def _servers() -> Iterator[tuple[str, str]]:
    with PostgresServer({"fsync": "on"}) as server:
        yield server.create_database(), server.create_database()


def _prepare(bare_url: str, our_url: str) -> None:
    engine = _bare_engine(bare_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE devices (id INTEGER PRIMARY KEY, holder INTEGER)"))
        connection.execute(text("CREATE INDEX by_holder ON devices (holder)"))
        connection.execute(text("INSERT INTO devices (id) VALUES (:id)"), [{"id": number} for number in range(DEVICES)])
    engine.dispose()
    ledger = open_ledger(_settings(our_url))
    ledger.register_host(HOST, _readings())
    ledger.close()


def _bare_engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        return create_engine(url)
    engine = create_engine(url, connect_args={"timeout": 60})

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:  # noqa: ANN401 (of the driver)
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def _marking(numbers: list[int]) -> Any:  # noqa: ANN401 (a statement)
    return text(f"UPDATE devices SET holder = :holder WHERE id IN ({','.join(map(str, numbers))})")


def _leaks(kind: type[Client], url: str) -> int:
    """Return how many devices are held although all clients have ended."""
    if kind is Ours:
        ledger = open_ledger(_settings(url))
        found = sum(len(row.holders) for row in LedgerReader(ledger).devices())
        ledger.close()
        return found
    engine = _bare_engine(url)
    with engine.begin() as connection:
        count = connection.scalar(text("SELECT count(*) FROM devices WHERE holder IS NOT NULL"))
    engine.dispose()
    return int(count or 0)


def _settings(url: str) -> Settings:
    return Settings(home=Path("/nonexistent"), ledger_url=url, lock_dir=Path("/nonexistent"), cpu_slots=0)


def _readings() -> tuple[Reading, ...]:
    names = [f"GPU-{number:04d}" for number in range(DEVICES)]
    return tuple(Reading(Device(name, "gpu", "a GPU", n, name), Health.FREE) for n, name in enumerate(names))


def _milliseconds_per_look() -> float:
    """Return the CPU time in which the ledger digests a new look at all devices, before its transaction."""
    readings, start = _readings(), time.process_time()
    for _ in range(20):
        Look.of(HOST, readings)
    return (time.process_time() - start) / 20 * 1000


def _lock(descriptor: int, kind: int, number: int) -> bool:
    """Lock or unlock the byte of one device for this process."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, number, 1, 0))
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
