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


GROUPS = """
from airflow.sdk import DAG, task, task_group

with DAG("groups", schedule=None):

    @task.tensorflow
    def fit(rate):
        import os

        return {"rate": rate, "replica": int(os.environ["AIRFLOW_TF_REPLICA"])}

    @task
    def tell(result):
        return sorted(result["metrics"].items())

    @task_group
    def each(rate):
        tell(fit(rate))

    each.expand(rate=[0.5, 0.25])
"""


@pytest.mark.usefixtures("no_processes_left")
def test_each_instance_of_a_mapped_task_group_trains_a_replica_of_its_own(home: AirflowHome, tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    folder.mkdir()
    (folder / "groups.py").write_text(GROUPS)
    alone = AirflowHome(home.folder, home.store, {"AIRFLOW__CORE__DAGS_FOLDER": str(folder)}, cpu_slots=1)
    shown = alone.run("dags", "test", "groups").stdout
    for number, rate in enumerate((0.5, 0.25)):
        assert f"[('rate', {rate}), ('replica', {number}.0)]" in shown
    (gang,) = LedgerReader(alone.ledger).runs("groups")
    assert [(replica.replica, replica.state) for replica in gang.replicas] == [(0, "succeeded"), (1, "succeeded")]
