"""The example of an export as it is shipped: what it publishes can be served, and its asset starts the next DAG."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.home import ROOT, AirflowHome
from tests.airflow.running import RunningAirflow
from tests.supervisor.harness import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow, pytest.mark.slow]

SERVE = """
import sys, tensorflow as tf
print(tf.saved_model.load(sys.argv[1]).signatures["serving_default"](x=tf.constant([0.0, 1.0]))["y"].numpy().tolist())
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAirflow]:
    folder = tmp_path_factory.mktemp("serving")
    home = AirflowHome(folder, (folder / "store").as_uri())
    home.dags.mkdir()
    (folder / "locks").mkdir()
    for name in ("serving.tf.yaml", "serving.py", "serving_check.py", ".airflowignore"):
        shutil.copy(ROOT / "dags" / name, home.dags / name)
    shutil.copytree(ROOT / "dags" / "serving", home.dags / "serving")
    home.run("db", "migrate")
    running = RunningAirflow(home)
    try:
        running.start()
        yield running
    finally:
        for part in running.parts.values():  # nothing is under way any more that would need their time
            part.stop(deadline_seconds=2)


def test_a_publication_starts_the_dag_that_waits_for_it_and_tells_it_where_the_model_is(
    airflow: RunningAirflow,
) -> None:
    airflow.trigger("serving", "first")
    assert airflow.wait_run("serving", "first") == "success"
    path = "/api/v2/dags/serving_check/dagRuns"
    wait_for(lambda: airflow.request("GET", path)["dag_runs"], "the run of the other DAG", 120, 1.0)
    run_id = airflow.request("GET", path)["dag_runs"][0]["dag_run_id"]
    assert airflow.wait_run("serving_check", run_id) == "success"
    path = f"/api/v2/dags/serving_check/dagRuns/{run_id}/taskInstances/announce/xcomEntries/return_value"
    value: Any = airflow.request("GET", path)["value"]
    told = value if isinstance(value, dict) else json.loads(value)
    (version,) = (airflow.home.folder / "store" / "lines").glob("v=*")
    assert (told["saved_model"], told["step"]) == (f"{version.as_uri().replace('%3D', '=')}/saved_model", 200)
    command = [sys.executable, "-c", SERVE, str(version / "saved_model")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx([-1.0, 2.0], abs=0.01)
    manifest = json.loads(Path(version, "manifest.json").read_text())
    assert manifest["origin"]["signatures"]["serving_default"]["inputs"] == {"x": {"dtype": "float32", "shape": [None]}}
