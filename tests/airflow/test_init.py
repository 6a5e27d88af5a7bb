"""The first thing a newcomer does: ``airflow tf init``, then ``airflow dags test``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.airflow.home import AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow]


@pytest.mark.usefixtures("no_processes_left")
def test_what_init_writes_trains_as_it_is(home: AirflowHome, tmp_path: Path) -> None:
    home.run("tf", "init", "churn", "--folder", str(tmp_path))
    alone = AirflowHome(home.folder, home.store, {"AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path)})
    assert "1 valid" in alone.run("tf", "validate", str(tmp_path / "churn.tf.yaml")).stdout
    alone.run("dags", "test", "churn")
    (version,) = (tmp_path / "churn" / "models").glob("v=*")
    assert (version / "_SUCCESS").exists()
    assert json.loads((version / "manifest.json").read_text())["files"]
