"""A person who says no keeps a model from being published."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.airflow.home import AirflowHome
from tests.supervisor.harness import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow]

ANSWER = """
import sys
from fastapi.testclient import TestClient
from airflow.api_fastapi.app import create_app

with TestClient(create_app()) as client:
    token = client.get("/auth/token").json()["access_token"]
    client.headers["Authorization"] = f"Bearer {token}"
    [run] = client.get("/api/v2/dags/asked/dagRuns").json()["dag_runs"]
    question = f"/api/v2/dags/asked/dagRuns/{run['dag_run_id']}/taskInstances/approve/-1/hitlDetails"
    print(client.get(question).json()["subject"])
    client.patch(question, json={"chosen_options": [sys.argv[1]], "params_input": {}}).raise_for_status()
"""


@pytest.mark.usefixtures("no_processes_left")
def test_a_rejection_skips_the_publication_and_the_run_ends_well(home: AirflowHome, tmp_path: Path) -> None:
    folder, output = tmp_path / "dags", tmp_path / "output"
    folder.mkdir()
    extra = {"AIRFLOW__CORE__DAGS_FOLDER": str(folder), "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True"}
    alone = AirflowHome(home.folder, home.store, extra)
    alone.run("tf", "init", "asked")
    with (folder / "asked.tf.yaml").open("a") as file:
        file.write("approval: {}\n")
    with output.open("w") as log:
        command = alone.command("dags", "test", "asked")
        running = subprocess.Popen(command, env=alone.environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: "AWAITING_INPUT" in output.read_text() or running.poll() is not None, "the question", 240, 0.2)
        answer = [sys.executable, "-c", ANSWER, "Reject"]
        done = subprocess.run(answer, env=alone.environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, f"{done.stderr[-3000:]}\n{output.read_text()[-3000:]}"
        assert "Publish the model of asked, run " in done.stdout
        assert running.wait(240) == 0, output.read_text()[-3000:]
    finally:
        running.kill()
    assert "skipped" in output.read_text()
    assert not (folder / "asked" / "models").exists()
