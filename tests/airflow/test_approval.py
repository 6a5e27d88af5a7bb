"""The example of an approval as it is shipped: a person who says no keeps a model from being published."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.airflow.home import ROOT, AirflowHome
from tests.supervisor.harness import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow]

ANSWER = """
import sys
from fastapi.testclient import TestClient
from airflow.api_fastapi.app import create_app

with TestClient(create_app()) as client:
    token = client.get("/auth/token").json()["access_token"]
    client.headers["Authorization"] = f"Bearer {token}"
    [run] = client.get("/api/v2/dags/approval/dagRuns").json()["dag_runs"]
    question = f"/api/v2/dags/approval/dagRuns/{run['dag_run_id']}/taskInstances/approve/-1/hitlDetails"
    asked = client.get(question).json()
    print(asked["subject"], asked["body"])
    client.patch(question, json={"chosen_options": [sys.argv[1]], "params_input": {}}).raise_for_status()
"""


@pytest.mark.usefixtures("no_processes_left")
def test_a_rejection_skips_the_publication_and_the_run_ends_well(home: AirflowHome, tmp_path: Path) -> None:
    folder, output = tmp_path / "dags", tmp_path / "output"
    for name in ("approval", "serving"):
        shutil.copytree(ROOT / "dags" / name, folder / name)
    for name in ("approval.py", "approval.tf.yaml", ".airflowignore"):
        shutil.copy(ROOT / "dags" / name, folder / name)
    extra = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW_VAR_FLIGHTS": tmp_path.as_uri(),
    }
    alone = AirflowHome(home.folder, home.store, extra)
    with output.open("w") as log:
        command = alone.command("dags", "test", "approval")
        running = subprocess.Popen(command, env=alone.environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: "AWAITING_INPUT" in output.read_text() or running.poll() is not None, "the question", 240, 0.2)
        answer = [sys.executable, "-c", ANSWER, "Reject"]
        done = subprocess.run(answer, env=alone.environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, f"{done.stderr[-3000:]}\n{output.read_text()[-3000:]}"
        assert "Publish the line of run " in done.stdout
        assert re.search(r"\| replica-0 \| [\d.e-]+ \|\n\| zero \| 4.0 \|", done.stdout)
        assert running.wait(240) == 0, output.read_text()[-3000:]
    finally:
        running.kill()
    assert "skipped" in output.read_text()
    assert not (tmp_path / "approved").exists()
