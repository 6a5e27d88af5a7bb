"""The Airflow home of the kill matrix: its DAGs, its devices, its short timings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from airflow_tf.devices.locks import DeviceLock, ensure_lock_folder
from tests.airflow.home import AirflowHome

HERE = Path(__file__).parent
CPU_SLOTS = 48
PAIRS = 32
WAITER_SLOTS = 2
PARALLELISM = 48
TIMINGS = {
    "AIRFLOW__CORE__PARALLELISM": str(PARALLELISM),
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "30",  # of one that is late it resets its own tasks
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__MAX_TIS_PER_QUERY": "0",
    # A task's supervisor gives up within 20 s of the api-server's silence, before the heartbeat timeout (30 s here), as
    # it does with Airflow's defaults (75 s, 300 s). Where it outlives its try, its own end, told to the scheduler in one
    # breath with the failure of the next try, hides that failure, and the next try stays queued (Airflow 3.3.2).
    "AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS": "2",
    "AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MIN": "0.5",
    "AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MAX": "0.5",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
    # More than the api-server has threads (40): it asks for a connection in its event loop as well (Airflow 3.3.2), and
    # where requests have all of them, which cannot end without that loop, it stands still for 30 s at a time.
    "AIRFLOW__DATABASE__SQL_ALCHEMY_POOL_SIZE": "50",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
}


def make_home(folder: Path, database_url: str) -> AirflowHome:
    """A migrated home with the DAGs of the matrix.

    Airflow's own database is PostgreSQL: on SQLite, a dozen runs at once end in "database is locked" here and there.
    """
    home = AirflowHome(folder, "", cpu_slots=CPU_SLOTS)
    home.extra["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = database_url
    home.extra["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"] = database_url  # psycopg does both
    home.extra |= TIMINGS
    devices = [{"uuid": uuid, "name": pair_name(pair)} for pair in range(PAIRS) for uuid in pair_uuids(pair)]
    home.extra["AIRFLOW__AIRFLOW_TF__STATIC_DEVICES"] = json.dumps(devices)
    (home.dags / "matrix").mkdir(parents=True)
    ensure_lock_folder(folder / "locks")
    (home.dags / ".airflowignore").write_text("matrix/\n")
    shutil.copy(HERE / "program.py", home.dags / "matrix" / "program.py")
    shutil.copy(HERE / "dag.py", home.dags / "matrix_dag.py")
    home.run("db", "migrate")
    home.run("pools", "set", "waiters", str(WAITER_SLOTS), "runs that wait for devices")
    return home


class Blockade:
    """A pair of static devices, locked as by another installation on this host: whoever asks for them waits."""

    def __init__(self, home: AirflowHome, pair: int) -> None:
        self.name = pair_name(pair)
        self._locks = [DeviceLock(home.folder / "locks", uuid) for uuid in pair_uuids(pair)]
        for lock in self._locks:
            assert lock.try_acquire(), lock.uuid

    def open(self) -> None:
        for lock in self._locks:
            lock.release()


def pair_name(pair: int) -> str:
    """Name of the two static devices of a run that has to wait."""
    return f"pair-{pair}"


def pair_uuids(pair: int) -> tuple[str, str]:
    return f"static-{pair}-0", f"static-{pair}-1"
