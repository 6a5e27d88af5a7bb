"""One long-lived Airflow for all cells; the cells that hit only their own run are played side by side."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted
from airflow_tf.supervisor.acquire import acquire, take_devices
from airflow_tf.testing.postgres import PostgresServer
from tests.airflow.home import AirflowHome
from tests.airflow.matrix.cells import Cell
from tests.airflow.matrix.installation import CPU_SLOTS, make_home
from tests.airflow.matrix.plays import OF_TRIGGERER, is_deferred, play, play_shared, shared_event
from tests.airflow.running import RunningAirflow
from tests.devices.conftest import library, nvml  # noqa: F401 (fixtures of the cells without Airflow)
from tests.supervisor.conftest import make_gang  # noqa: F401 (a fixture of the cells without Airflow)
from tests.supervisor.harness import wait_for

AT_ONCE = 12  # runs on two cores
LEFT_PROCESS_DEADLINE_SECONDS = 90


class Matrix:
    """Plays cells on demand: all that were selected and hit only their own run at once, shared events one by one."""

    def __init__(self, airflow: RunningAirflow, own: list[Cell], shared: list[Cell]) -> None:
        self.airflow = airflow
        self._pool = ThreadPoolExecutor(AT_ONCE)
        deferred_first = sorted(own, key=lambda cell: not is_deferred(cell))
        self._own = {cell.id: self._pool.submit(play, airflow, cell) for cell in deferred_first}
        self._shared: dict[str, dict[str, BaseException | None]] = {}
        events = [event for event in OF_TRIGGERER if event in {cell.event for cell in shared}]
        self._of_triggerer: Future[None] = ThreadPoolExecutor(1).submit(self._kill_triggerers, own, events)

    def _kill_triggerers(self, own: list[Cell], events: list[str]) -> None:
        """Play what hits deferred tasks only, beside the others, once the deferred tasks of other cells have ended."""
        try:
            for cell in own:
                if is_deferred(cell):
                    self._own[cell.id].exception()
        except CancelledError:  # the session ends early
            return
        for event in events:
            self._shared[event] = play_shared(self.airflow, event)

    def own(self, cell: Cell) -> None:
        """Raise what was not as the table says in a cell that hits its own run."""
        self._own[cell.id].result()

    def shared(self, cell: Cell) -> None:
        """Raise what was not as the table says in one of the runs that an event has hit together."""
        self._pool.shutdown()  # nothing else may run while a part of Airflow is down
        self._of_triggerer.result()
        event = shared_event(cell)
        if event not in self._shared:
            self._shared[event] = play_shared(self.airflow, event)
        error = self._shared[event].get(cell.id)
        if error is not None:
            raise error

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._of_triggerer.result()


@pytest.fixture(scope="session")
def matrix(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer
) -> Iterator[Matrix]:
    """Airflow with the DAGs of the matrix; at the end every device can be had at once and no process is left."""
    functions = [item for item in request.session.items if isinstance(item, pytest.Function)]
    own, shared = (
        [item.callspec.params["cell"] for item in functions if item.originalname == name]
        for name in ("test_own_run", "test_shared")
    )
    home = make_home(tmp_path_factory.mktemp("matrix"), postgres_server.create_database())
    airflow = RunningAirflow(home)
    try:
        airflow.start()
        matrix = Matrix(airflow, own, shared)
        yield matrix
        matrix.close()
        take_every_device(home)
    finally:
        airflow.stop()
    wait_for(lambda: not processes_of(home.folder), f"no process left: {processes_of(home.folder)}", pause_seconds=0.5)


def take_every_device(home: AirflowHome) -> None:
    """Reserve, lock and sweep all CPU slots, as the next run would."""
    ledger = home.ledger
    key = GangKey(ledger.ledger_id, "next", "run", "train")
    ledger.open_gang(key, CPU_SLOTS, str(home.folder))
    granted = acquire(ledger, home.settings, key, DeviceRequest("cpu"), range(CPU_SLOTS))
    assert isinstance(granted, Granted), granted
    for member in granted.members:
        for lock in take_devices(member, home.settings):
            lock.release()
        ledger.release(member)


def processes_of(folder: Path) -> list[str]:
    """Processes that have the home in their environment: Airflow's parts and tasks, supervisors, replicas."""
    found = []
    for process in psutil.process_iter():
        try:
            values = process.environ().values()
            if any(value.startswith(str(folder)) for value in values) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid}: {' '.join(process.cmdline())[:120]}")
        except psutil.Error:
            continue
    return found
