"""The example of two declarations in one DAG trains as it is shipped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.airflow.home import ROOT, AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow]


@pytest.mark.usefixtures("no_processes_left")
def test_two_groups_of_one_dag_train_each_on_its_own_input_of_the_same_name(home: AirflowHome, tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    folder.mkdir()
    shutil.copy(ROOT / "dags" / "compared.py", folder)
    for name in ("compared", "flights"):
        shutil.copytree(ROOT / "dags" / name, folder / name)
    alone = AirflowHome(home.folder, home.store, {"AIRFLOW__CORE__DAGS_FOLDER": str(folder)}, cpu_slots=1)
    shown = alone.run("dags", "test", "compared").stdout
    assert "Done. Returned value was: fast" in shown
    (inputs,) = (home.folder / "airflow_tf" / "runs").glob("compared--*/inputs")
    assert {path.name for path in inputs.iterdir() if path.is_dir()} == {"slow.train", "fast.train"}
    assert (inputs / "slow.train.manifest.json").read_text() != (inputs / "fast.train.manifest.json").read_text()
