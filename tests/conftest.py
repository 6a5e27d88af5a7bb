"""Shared fixtures: a private Airflow home per test session, settings of the product, and a check for left processes.

This file is imported before any test module, so Airflow (which reads its configuration while it is imported) sees
only the private home. Variables of the caller's own Airflow never leak in.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

from airflow_tf.core.settings import Settings
from airflow_tf.ledger import Ledger, open_ledger

SESSION_VARIABLE = "AIRFLOW_TF_TEST_SESSION"
"""Marks every process that inherits the environment of this test session."""

LEFT_PROCESS_DEADLINE_SECONDS = 15.0


def _make_private_home() -> Path:
    if "airflow" in sys.modules:
        raise pytest.UsageError("Airflow was imported before tests/conftest.py could give it a private home")
    for name in list(os.environ):
        if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW_CONFIG")):
            del os.environ[name]
    home = Path(tempfile.mkdtemp(prefix="airflow_tf-"))  # short: unix socket paths end at 107 bytes
    (home / "dags").mkdir()
    os.environ |= {
        SESSION_VARIABLE: home.name,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__AIRFLOW_TF__LOCK_DIR": str(home / "locks"),
        "AIRFLOW__AIRFLOW_TF__CPU_SLOTS": "2",
        "AIRFLOW__AIRFLOW_TF__CALLBACKS": "tests.pipeline.callbacks",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    return home


HOME = _make_private_home()
# On a loaded machine any example may take long. The suite tries the same examples in every run; a hunt, which is
# --hypothesis-profile=hunt, tries many others.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("hunt", deadline=None, database=None, max_examples=500, print_blob=True)
hypothesis.settings.load_profile("suite")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A run in the background ignores ^C, and would hand that on to every program to which a test sends one.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU, unless ``-m`` asks for it by name: no machine that runs the suite must have one."""
    if "gpu" not in config.getoption("markexpr"):
        needing = [item for item in items if item.get_closest_marker("gpu")]
        items[:] = [item for item in items if item not in needing]
        config.hook.pytest_deselected(items=needing)


def pytest_unconfigure() -> None:
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """The session's private ``$AIRFLOW_HOME``, without a database unless ``airflow_database`` is used too."""
    return HOME


@pytest.fixture(scope="session")
def airflow_database(airflow_home: Path) -> Path:
    """Migrate the private home's SQLite database once per session and return the home."""
    command = [sys.executable, "-m", "airflow", "db", "migrate"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return airflow_home


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a private installation: SQLite ledger, own lock folder, two CPU slots, 1 GiB of cache."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    lock_dir = tmp_path / "locks"
    lock_dir.mkdir()
    return Settings(
        home=home,
        ledger_url=f"sqlite:///{home / 'ledger.db'}",
        lock_dir=lock_dir,
        cpu_slots=2,
        cache_bytes=2**30,
    )


@pytest.fixture
def ledger(settings: Settings) -> Iterator[Ledger]:
    """The ledger of the private installation."""
    opened = open_ledger(settings)
    yield opened
    opened.close()


@pytest.fixture
def no_processes_left(tmp_path: Path) -> Iterator[None]:
    """Assert at teardown that every process the test started is gone, waiting for it within a deadline.

    Counted are descendants of the test process, processes that inherited this session's mark, and processes whose
    ``AIRFLOW_TF_`` variables name a folder of this test or session (a detached supervisor, its zygote and replicas).
    Fixtures of session scope (HDFS, PostgreSQL) start earlier and are not counted, nor are their own processes.
    """
    before = {process.pid for process in _ours(tmp_path)}
    yield
    deadline = time.monotonic() + LEFT_PROCESS_DEADLINE_SECONDS
    left = _describe(tmp_path, before)
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = _describe(tmp_path, before)
    assert not left, "processes left behind:\n" + "\n".join(left)


def _ours(tmp_path: Path) -> list[psutil.Process]:
    descendants = {child.pid for child in psutil.Process().children(recursive=True)}
    return [
        process
        for process in psutil.process_iter()
        if process.pid != os.getpid() and (process.pid in descendants or _is_marked(process, tmp_path))
    ]


def _is_marked(process: psutil.Process, tmp_path: Path) -> bool:
    try:
        environment = process.environ()
    except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
        return False  # of another user, or gone
    if environment.get(SESSION_VARIABLE) == HOME.name:
        return True
    folders = (str(HOME), f"{tmp_path.parent}/")  # the session's, so that those of its shared fixtures count too
    return any(name.startswith("AIRFLOW_TF_") and value.startswith(folders) for name, value in environment.items())


def _describe(tmp_path: Path, before: set[int]) -> list[str]:
    lines = []
    for process in _ours(tmp_path):
        try:
            command = " ".join(process.cmdline())
            is_new = process.pid not in before and process.ppid() not in before
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        # The resource tracker of multiprocessing ends with the test process itself; a zombie has no command line.
        if command and is_new and "multiprocessing.resource_tracker" not in command:
            lines.append(f"{process.pid}: {command[:200]}")
    return lines
