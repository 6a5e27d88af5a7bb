"""Parsing DAGs must cost no TensorFlow: every Airflow process does it, again and again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DAGS = Path(__file__).parents[2] / "dags"
HEAVY = ("tensorflow", "keras", "hdfs_native", "hdfs", "pynvml", "pandas")


def loaded(code, heavy=HEAVY):
    found = f"; import sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code + found], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_importing_the_package_loads_nothing_heavy():
    assert loaded("import airflow_tf") == "[]"


@pytest.mark.airflow
def test_parsing_every_dag_loads_nothing_heavy(airflow_database):
    code = f"""
from airflow.dag_processing.dagbag import DagBag
bag = DagBag({str(DAGS)!r}, bundle_name="test")
assert not bag.import_errors, bag.import_errors
assert "flights" in bag.dags, sorted(bag.dags)
"""
    assert loaded(code.strip() + "\n0") == "[]"


@pytest.mark.tensorflow
def test_names_that_need_tensorflow_are_loaded_when_asked_for():
    assert loaded("import airflow_tf.runtime", ("tensorflow",)) == "[]"
    assert loaded("from airflow_tf.runtime import csv_dataset, blocks_dataset", ("tensorflow",)) == "['tensorflow']"


def test_a_supervisor_loads_nothing_heavy_either():
    """It stays as long as a training: numpy alone would be a fifth of its memory."""
    heavy = (*HEAVY, "numpy", "alembic", "airflow")
    assert loaded("import airflow_tf.supervisor.gang", heavy) == "[]"


def test_the_check_can_fail():
    assert loaded("import sys; sys.modules['keras'] = sys") == "['keras']"
