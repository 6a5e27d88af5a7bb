"""The examples of the strategies train as they are shipped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.airflow.home import ROOT, AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow]


@pytest.mark.usefixtures("no_processes_left")
@pytest.mark.parametrize("name", ["sync", "parameter_server", "v1_cluster", "towers", "mirrored"])
def test_the_example_trains(home: AirflowHome, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "examples"
    shutil.copytree(ROOT / "dags" / name, folder / name)
    for file in (f"{name}.py", f"{name}.tf.yaml", ".airflowignore"):
        shutil.copy(ROOT / "dags" / file, folder / file)
    alone = AirflowHome(home.folder, home.store, {"AIRFLOW__CORE__DAGS_FOLDER": str(folder)}, cpu_slots=4)
    shown = alone.run("dags", "test", name).stdout
    assert ("total [[176.0, 188.0, 192.0]" if name == "towers" else "result ") in shown
