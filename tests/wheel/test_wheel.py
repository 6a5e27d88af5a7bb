"""The wheel: what users install must be whole, and work without this clone."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import airflow_tf
from tests.wheel.building import ROOT, uv

LOADS = """
import sys
from importlib import metadata
found = metadata.distribution("airflow-tf")
for point in found.entry_points:
    print(point.group, point.name, point.load())
import airflow_tf
assert airflow_tf.__file__.startswith(sys.argv[1]), airflow_tf.__file__
"""

WORKS = """
import sys
from pathlib import Path
folder = Path(sys.argv[1])
from airflow_tf.cli.init import scaffold
scaffold("churn", folder)
from airflow_tf.pipeline.build import load_dag
assert len(load_dag(folder / "churn.tf.yaml").task_dict) == 5
from airflow_tf.hooks.settings import load_settings
from airflow_tf.ledger import open_ledger
assert open_ledger(load_settings()).ledger_id
"""

OF_THE_TRAINING_INTERPRETER = """
import airflow_tf.runtime.function, airflow_tf.runtime.replica, airflow_tf.core.launch
from airflow_tf.runtime import context
assert context().replica == 0
"""


def python(program: str, argument: Path, interpreter: str = sys.executable, **variables: str) -> str:
    command = [interpreter, "-c", program, str(argument)]
    done = subprocess.run(
        command, cwd=argument, env=os.environ | variables, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_it_holds_every_file_of_the_package_and_nothing_else(unpacked: Path) -> None:
    def files(folder: Path) -> set[str]:
        return {
            str(path.relative_to(folder))
            for path in (folder / "airflow_tf").rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    assert files(unpacked) == files(ROOT)
    assert {path.name for path in unpacked.iterdir()} == {
        "airflow_tf",
        f"airflow_tf-{airflow_tf.__version__}.dist-info",
    }


def test_its_metadata_say_what_it_needs(unpacked: Path) -> None:
    [file] = unpacked.glob("*.dist-info/METADATA")
    metadata = HeaderParser().parsestr(file.read_text())
    assert metadata["Version"] == airflow_tf.__version__
    assert metadata["Requires-Python"] == "<3.14,>=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"tensorflow", "hdfs", "gpu", "postgres"} <= set(metadata.get_all("Provides-Extra") or [])
    plain = [text for text in metadata.get_all("Requires-Dist") or [] if "extra ==" not in text]
    assert any(text.startswith("apache-airflow") and "3.3" in text for text in plain)
    assert not [text for text in plain if text.startswith(("tensorflow", "hdfs", "nvidia", "psycopg"))]


def test_its_entry_points_can_be_loaded_from_it(unpacked: Path) -> None:
    found = python(LOADS, unpacked, PYTHONPATH=str(unpacked))
    groups = {line.split()[0] for line in found.splitlines()}
    assert groups == {"apache_airflow_provider", "airflow.plugins", "pytest11"}


def test_its_data_files_serve_a_first_dag_and_a_new_ledger(unpacked: Path, tmp_path: Path) -> None:
    home = {"AIRFLOW_HOME": str(tmp_path / "home"), "AIRFLOW__AIRFLOW_TF__HOME": str(tmp_path / "home" / "tf")}
    python(WORKS, tmp_path, PYTHONPATH=str(unpacked), **home)
    assert (tmp_path / "home" / "tf" / "ledger.db").exists()


def test_a_training_interpreter_needs_nothing_beside_it(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    uv("venv", "--quiet", "--python", sys.executable, environment)
    interpreter = environment / "bin" / "python"
    uv("pip", "install", "--quiet", "--offline", "--no-deps", "--python", interpreter, wheel)
    python(OF_THE_TRAINING_INTERPRETER, tmp_path, str(interpreter), PYTHONPATH="")
