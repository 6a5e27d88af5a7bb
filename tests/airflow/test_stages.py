"""The example of several trainings as it is shipped: the second one goes on from what the first has made."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.airflow.home import ROOT, AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow]


@pytest.mark.usefixtures("no_processes_left")
def test_the_second_stage_begins_with_the_average_of_the_first(home: AirflowHome, tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    shutil.copytree(ROOT / "dags" / "stages", folder / "stages")
    for file in ("stages.py", "stages.tf.yaml", ".airflowignore"):
        shutil.copy(ROOT / "dags" / file, folder / file)
    extra = {"AIRFLOW__CORE__DAGS_FOLDER": str(folder), "AIRFLOW_VAR_FLIGHTS": tmp_path.as_uri()}
    shown = AirflowHome(home.folder, home.store, extra).run("dags", "test", "stages").stdout
    assert re.findall(r"begins at step (\d+)", shown) == ["0", "0", "200"]
    assert re.search(r"training begins with file:\S+/average, ", shown)
    (version,) = (tmp_path / "stages").glob("v=*")
    assert (version / "_SUCCESS").exists()
