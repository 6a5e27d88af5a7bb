"""The example from end to end, as users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_tf.core.checkpoint import latest_complete, verify
from airflow_tf.core.states import AttemptState
from airflow_tf.testing.hdfs import HdfsCluster
from tests.airflow.home import AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow, pytest.mark.slow]

RESTORE = """
import json, sys, numpy as np, tensorflow as tf
sys.path.insert(0, sys.argv[1])
from train import Trainer
def restored(prefix):
    trainer = Trainer(0.0)
    tf.train.Checkpoint(trainer=trainer).restore(prefix).assert_consumed()
    return [variable.numpy() for variable in trainer.model.trainable_variables]
published, *replicas = (restored(prefix) for prefix in sys.argv[2:])
difference = max(float(np.max(np.abs(p - np.mean(r, axis=0)))) for p, *r in zip(published, *replicas))
print(json.dumps({"difference": difference, "latest": tf.train.latest_checkpoint(sys.argv[2].rpartition("/")[0])}))
"""


@pytest.fixture(scope="module")
def run(home: AirflowHome, flights: Path) -> str:
    """Output of one whole ``airflow dags test``."""
    return home.run("dags", "test", "flights").stdout


def published(flights: Path) -> list[Path]:
    return sorted((flights / "flights" / "models").glob("v=*"))


def test_the_run_publishes_one_whole_result(run: str, flights: Path) -> None:
    (version,) = published(flights)
    names = {path.name for path in version.iterdir()}
    assert names == {"_SUCCESS", "checkpoint", "manifest.json", "model.data-00000-of-00001", "model.index"}
    assert {path.name for path in version.parent.iterdir()} == {version.name, "_latest"}
    assert (version.parent / "_latest").read_text() == version.name


def test_the_average_beats_the_mean_predictor_clearly(run: str, flights: Path) -> None:
    origin = json.loads((published(flights)[0] / "manifest.json").read_text())["origin"]
    assert origin["candidate"] == "average"  # so it is not worse than any replica
    evaluation = origin["evaluation"]
    baseline = evaluation["baselines"]["mean-predictor"]["mae"]
    assert evaluation["candidates"]["average"]["mae"] < 0.7 * baseline
    assert set(evaluation["candidates"]) == {"replica-0", "replica-1", "average"}


def test_tensorflow_restores_the_published_mean_of_the_replicas(run: str, home: AirflowHome, flights: Path) -> None:
    (gang,) = (home.folder / "airflow_tf" / "runs").glob("flights--*/train--*")
    folders = sorted(gang.glob("replica-*/generation-1/checkpoints"))
    replicas = [latest_complete(folder).prefix for folder in folders]
    assert len(replicas) == 2
    prefix = str(published(flights)[0] / "model")
    done = subprocess.run(
        [sys.executable, "-c", RESTORE, str(home.dags / "flights"), prefix, *replicas],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["difference"] < 1e-6
    assert result["latest"] == prefix
    verify(prefix)


def test_nothing_is_left_running_or_reserved(run: str, home: AirflowHome, no_processes_left: None) -> None:
    from airflow_tf.ledger.read import LedgerReader

    assert LedgerReader(home.ledger).reservations() == []


@pytest.mark.usefixtures("no_processes_left")
def test_one_replica_alone_by_tasks_test(home: AirflowHome, run: str) -> None:
    before = set((home.folder / "airflow_tf" / "runs").iterdir())
    home.run("tasks", "test", "flights", "train", "--map-index", "1")
    (folder,) = set((home.folder / "airflow_tf" / "runs").iterdir()) - before
    results = list(folder.glob("train--*/replica-1/generation-1/attempt-1/result.json"))
    assert len(results) == 1
    assert json.loads(results[0].read_text())["state"] == AttemptState.SUCCEEDED


@pytest.mark.usefixtures("no_processes_left")
def test_the_same_dag_written_by_hand(home: AirflowHome, flights: Path, run: str) -> None:
    before = set(published(flights))
    home.run("dags", "test", "flights_by_hand", "--conf", '{"epochs": 1}')
    (version,) = set(published(flights)) - before
    assert json.loads((version / "manifest.json").read_text())["origin"]["dag_id"] == "flights_by_hand"


@pytest.mark.hdfs
@pytest.mark.usefixtures("no_processes_left")
def test_the_same_declaration_on_a_real_hdfs(home: AirflowHome, flights: Path, hdfs_cluster: HdfsCluster) -> None:
    import hdfs_native

    uri = hdfs_cluster.uri
    client = hdfs_native.Client(uri)
    for path in sorted((flights / "flights").glob("*/*.csv")):
        with client.create(f"/flights/{path.parent.name}/{path.name}") as file:
            file.write(path.read_bytes())
    original, home.store = home.store, f"{uri}/flights"
    try:
        home.run("dags", "test", "flights", "--conf", '{"epochs": 1}')
    finally:
        home.store = original
    names = {info.path.rpartition("/")[2] for info in client.list_status("/flights/models", recursive=True)}
    assert {"_SUCCESS", "manifest.json", "model.index"} <= names
