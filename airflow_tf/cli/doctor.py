"""Checks of a host: each says in one line that something is in order, or what to do about it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import airflow
from airflow.configuration import conf
from airflow.providers_manager import ProvidersManager
from airflow.utils.db import check_migrations

from airflow_tf.core.devices import Health
from airflow_tf.core.errors import AirflowTfError, DeclarationError
from airflow_tf.core.settings import Settings
from airflow_tf.core.units import format_bytes
from airflow_tf.devices.locks import ensure_lock_folder
from airflow_tf.devices.registry import read_all
from airflow_tf.hooks.hdfs import HdfsHook
from airflow_tf.hooks.settings import load_settings
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.location import filesystem_type, refuse_network_filesystem
from airflow_tf.pipeline.build import load_dag
from airflow_tf.pipeline.loader import SUFFIX
from airflow_tf.storage.client import probe
from airflow_tf.storage.kerberos import describe_credentials
from airflow_tf.supervisor import cgroup, scope

TRAINING_DEADLINE_SECONDS = 180.0
LOW_SPACE_BYTES = 2 * 2**30
_MARGIN = 24

_TRAINING_PROGRAM = """
import json, sys
import tensorflow, keras
info = tensorflow.sysconfig.get_build_info()
print(json.dumps({
    "python": sys.version.split()[0], "tensorflow": tensorflow.__version__, "keras": keras.__version__,
    "cuda": info.get("cuda_version"),
}))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""

    def to_row(self) -> dict[str, str]:
        """Return the line as a table row."""
        return {
            "check": self.name,
            "result": "ok" if self.ok else "failed",
            "detail": self.detail,
            "remedy": self.remedy,
        }

    def to_line(self) -> str:
        """Return the line for a terminal, whole, with the remedy below."""
        remedy = f"\n{'':{_MARGIN}}→ {self.remedy}" if self.remedy else ""
        return f"{'✔' if self.ok else '✘'} {self.name:{_MARGIN - 3}} {self.detail}{remedy}"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user wants checked beyond the defaults."""

    hdfs: str | None = None
    hdfs_conn_id: str | None = None
    python: str | None = None


def run_checks(wishes: Wishes) -> Iterator[Check]:
    """Yield the result of every check; a check that breaks is a failed one."""
    yield _guarded("airflow", _airflow)
    yield _guarded("database", _database)
    yield _guarded("provider", _provider)
    try:
        settings = load_settings()
    except AirflowTfError as error:
        yield _failed("settings", error)
        return
    yield _guarded("ledger", lambda: _ledger(settings))
    yield _guarded("lock folder", lambda: _lock_folder(settings))
    yield _guarded("devices", lambda: _devices(settings))
    yield _guarded("cache folder", lambda: _cache(settings))
    yield _guarded("memory limits", cgroup.describe)
    yield _guarded("worker restarts", lambda: scope.describe(settings.own_scope))
    yield _guarded("training interpreter", lambda: _training(wishes.python or sys.executable))
    if wishes.hdfs or wishes.hdfs_conn_id:
        yield _guarded("hdfs", lambda: _hdfs(wishes))
    folder = Path(conf.get("core", "dags_folder"))
    files = sorted(folder.rglob(f"*{SUFFIX}"))
    if not files:
        yield Check("declarations", ok=True, detail=f"none in {folder}")
    for file in files:
        yield _guarded(str(file.relative_to(folder)), partial(_declaration, file))


def _guarded(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, ok=True, detail=check())
    except AirflowTfError as error:
        return _failed(name, error)
    except Exception as error:  # noqa: BLE001  a doctor reports what broke, whatever it is
        return Check(name, ok=False, detail=f"{type(error).__name__}: {error}")


def _failed(name: str, error: AirflowTfError) -> Check:
    return Check(name, ok=False, detail=f"{error.what}: {error.why}" if error.why else error.what, remedy=error.todo)


def _airflow() -> str:
    version = airflow.__version__
    if not version.startswith("3.3."):
        raise DeclarationError(f"Airflow {version}", "airflow_tf needs 3.3", "Install apache-airflow>=3.3.2,<3.4.")
    return f"{version}, home {os.environ.get('AIRFLOW_HOME', '~/airflow')}"


def _database() -> str:
    try:
        check_migrations(timeout=1)  # type: ignore[no-untyped-call]  # Airflow's own
    except TimeoutError as error:
        raise DeclarationError("Airflow's database is not migrated", todo="Run 'airflow db migrate'.") from error
    return str(conf.get("database", "sql_alchemy_conn")).partition(":")[0]


def _provider() -> str:
    if "airflow-tf" not in ProvidersManager().providers:  # type: ignore[no-untyped-call]  # Airflow's own
        raise DeclarationError(
            "Airflow does not see the provider", todo="Install airflow-tf with pip in Airflow's own environment."
        )
    return "loaded"


def _ledger(settings: Settings) -> str:
    return f"ledger {open_ledger(settings).ledger_id}"


def _lock_folder(settings: Settings) -> str:
    ensure_lock_folder(settings.lock_dir)
    return str(settings.lock_dir)


def _devices(settings: Settings) -> str:
    readings = read_all(settings, "auto")
    if not readings:
        raise DeclarationError("no device", todo="Set [airflow_tf] cpu_slots or static_devices.")
    sick = [
        f"{reading.device.uuid}: {reading.reason}"
        for reading in readings
        if reading.health in {Health.UNHEALTHY, Health.UNKNOWN}
    ]
    if sick:
        raise DeclarationError(f"{len(sick)} of {len(readings)} devices cannot be used", "; ".join(sick))
    free = sum(reading.health is Health.FREE for reading in readings)
    return f"{free} of {len(readings)} {readings[0].device.kind} devices free"


def _cache(settings: Settings) -> str:
    settings.cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_network_filesystem(settings.cache_dir, "the cache folder")
    free = shutil.disk_usage(settings.cache_dir).free
    if free < LOW_SPACE_BYTES:
        what = f"{format_bytes(free)} free at {settings.cache_dir}"
        raise DeclarationError(what, todo="Free space, or set the option airflow_tf.home to a larger disk.")
    budget = format_bytes(settings.cache_bytes)
    return f"{settings.cache_dir} on {filesystem_type(settings.cache_dir)}, {format_bytes(free)} free, budget {budget}"


def _training(python: str) -> str:
    """Import TensorFlow as a replica would, in a process that can be given up."""
    todo = f"Install it: {python} -m pip install 'airflow-tf[tensorflow]', or name another interpreter by train.python."
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            [python, "-c", _TRAINING_PROGRAM],
            env=environment, capture_output=True, text=True, timeout=TRAINING_DEADLINE_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        what = f"{python} did not import TensorFlow within {TRAINING_DEADLINE_SECONDS:.0f} s"
        raise DeclarationError(what, todo="Look at the host's load, or reinstall TensorFlow.") from error
    except OSError as error:
        raise DeclarationError(f"{python} cannot be run", str(error.strerror), todo) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DeclarationError(f"{python} cannot import TensorFlow", last, todo)
    found = json.loads(done.stdout.splitlines()[-1])
    cuda = f"CUDA {found['cuda']}" if found["cuda"] else "without CUDA"
    return f"Python {found['python']}, TensorFlow {found['tensorflow']} {cuda}, Keras {found['keras']}"


def _declaration(file: Path) -> str:
    return f"declares DAG {load_dag(file).dag_id}"


def _hdfs(wishes: Wishes) -> str:
    uri = wishes.hdfs or "hdfs:///"
    options = HdfsHook(wishes.hdfs_conn_id).storage_options(uri)
    found = probe(uri, options=options)
    return ", ".join([f"{uri} answered in {found['seconds']} s", *describe_credentials(options)])
