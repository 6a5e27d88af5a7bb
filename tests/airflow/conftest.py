"""Fixtures: the flights on disk, an Airflow home per test module, a running Airflow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.airflow.home import ROOT, AirflowHome


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real flights as CSV by month; ``train`` and ``holdout`` below the folder."""
    folder = tmp_path_factory.mktemp("flights-data")
    subprocess.run([sys.executable, str(ROOT / "scripts" / "flights_data.py"), str(folder / "flights")], check=True)
    return folder


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, flights: Path) -> AirflowHome:
    """A migrated Airflow home with the example; input and output below the flights' folder."""
    made = AirflowHome(tmp_path_factory.mktemp("airflow"), (flights / "flights").as_uri())
    made.copy_example()
    made.run("db", "migrate")
    return made
