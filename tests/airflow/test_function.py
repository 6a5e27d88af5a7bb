"""The example of ``@task.tensorflow`` trains as it is shipped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_tf.ledger.read import LedgerReader
from tests.airflow.home import ROOT, AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow]


@pytest.mark.usefixtures("no_processes_left")
def test_functions_train_and_their_metrics_go_on_to_the_next_task(home: AirflowHome, tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    folder.mkdir()
    shutil.copy(ROOT / "dags" / "function.py", folder)
    alone = AirflowHome(home.folder, home.store, {"AIRFLOW__CORE__DAGS_FOLDER": str(folder)}, cpu_slots=1)
    shown = alone.run("dags", "test", "function").stdout
    assert "Done. Returned value was: {'weight': 2.99" in shown
    (gang,) = LedgerReader(alone.ledger).runs("function")
    assert [(replica.replica, replica.state) for replica in gang.replicas] == [(0, "succeeded"), (1, "succeeded")]
    assert len(list(Path(gang.folder or "").glob("replica-*"))) == len(gang.replicas)
