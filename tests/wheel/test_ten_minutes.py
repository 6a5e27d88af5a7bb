"""The first ten minutes of a newcomer: every command of the tutorial, typed into a terminal.

The environment holds nothing but the wheel and what it needs; the home is empty.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.airflow.home import AirflowHome
from tests.airflow.running import RUN_DEADLINE_SECONDS, RunningAirflow
from tests.supervisor.harness import wait_for
from tests.wheel.building import ROOT, uv
from tests.wheel.terminal import Terminal

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow, pytest.mark.slow]

REPLICAS = ["replica 0", "replica 1"]
EPOCHS = 5
TASKS = ("stage.train", "reserve_devices", "train", "aggregate_checkpoints", "publish")


@pytest.fixture
def environment(wheel: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "environment"
    uv("venv", "--quiet", "--python", sys.executable, folder)
    uv("pip", "install", "--quiet", "--python", folder / "bin" / "python", "-c", "constraints.txt",
       f"{wheel}[hdfs,gpu]", "tensorflow-cpu")  # fmt: skip
    return folder


class Newcomer:
    """An empty home, a terminal in it, and what the user sees there and in Airflow."""

    def __init__(self, home: Path, environment: Path) -> None:
        home.mkdir()
        self.home = home
        self.dags = home / "airflow" / "dags"
        self.airflow = RunningAirflow(AirflowHome(home / "airflow", ""))
        self._variables = {
            "HOME": str(home),
            "PATH": f"{environment / 'bin'}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "AIRFLOW_TF_TEST_SESSION": os.environ["AIRFLOW_TF_TEST_SESSION"],  # by which what is left is found
            "AIRFLOW__AIRFLOW_TF__LOCK_DIR": str(home / "locks"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            **self.airflow.home.extra,  # a free port
        }
        self.terminal = self.open_terminal()
        self.windows = [self.terminal]

    def open_terminal(self) -> Terminal:
        return Terminal(self._variables, self.home)

    def files(self) -> dict[str, float]:
        """Every file of the product and the user, with the time of its last change."""
        folders = (self.dags, self.home / "airflow" / "airflow_tf")
        return {
            str(path): path.stat().st_mtime
            for folder in folders
            for path in folder.rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }

    def versions(self) -> set[str]:
        return {
            folder.name for folder in (self.dags / "churn" / "models").glob("v=*") if (folder / "_SUCCESS").exists()
        }


@pytest.fixture
def newcomer(tmp_path: Path, environment: Path, no_processes_left: None) -> Iterator[Newcomer]:
    made = Newcomer(tmp_path / "home", environment)
    yield made
    for window in made.windows:
        window.close()


def doctor_complains(newcomer: Newcomer, line: str) -> None:
    code, shown = newcomer.terminal.type(line)
    assert code == 1, shown
    assert [each.split()[1] for each in shown.splitlines() if each.startswith("✘")] == ["database"], shown
    assert "→ Run 'airflow db migrate'." in shown


def doctor_is_content(newcomer: Newcomer, line: str) -> None:
    code, shown = newcomer.terminal.type(line)
    assert code == 0, shown
    assert {each[0] for each in shown.splitlines()} == {"✔"}, shown
    assert re.search(r"✔ training interpreter +Python 3\.\d+\.\d+, TensorFlow 2\.21", shown), shown
    assert re.search(r"✔ devices +\d+ of \d+ cpu devices free", shown), shown
    code, shown = newcomer.terminal.type(f"{line} --output json")
    assert {row["result"] for row in json.loads(shown)} == {"ok"}


def succeeds(newcomer: Newcomer, line: str) -> None:
    code, shown = newcomer.terminal.type(line)
    assert code == 0, shown


def init_writes_the_files(newcomer: Newcomer, line: str) -> None:
    succeeds(newcomer, line)
    names = {"churn.tf.yaml", "churn.py", "churn.schema.json", ".airflowignore", "churn"}
    assert {path.name for path in newcomer.dags.iterdir()} == names


def plan_shows_all_and_does_nothing(newcomer: Newcomer, line: str) -> None:
    before = newcomer.files()
    code, shown = newcomer.terminal.type(line)
    assert code == 0, shown
    assert newcomer.files() == before
    for text in (*TASKS, "2 files, 43.6 KiB", "replica 0: cpu-0", "allow_soft_placement", "newest now: none"):
        assert text in shown


def dags_test_publishes(newcomer: Newcomer, line: str) -> None:
    code, shown = newcomer.terminal.type(line)
    assert code == 0, shown
    assert '[train 0] {"step": 80' in shown
    assert '[train 1] {"step": 80' in shown
    (version,) = newcomer.versions()
    assert version in shown


def tasks_test_trains_one_replica(newcomer: Newcomer, line: str) -> None:
    code, shown = newcomer.terminal.type(line)
    assert code == 0, shown
    assert '[train 1] {"step": 80' in shown
    assert "[train 0]" not in shown


def runs_are_listed(newcomer: Newcomer, line: str) -> None:
    succeeds(newcomer, line)
    _, shown = newcomer.terminal.type(f"{line} --output json")
    rows = json.loads(shown)
    assert sorted(row["replica"] for row in rows) == [0, 1, 1]
    assert {row["state"] for row in rows} == {"succeeded"}
    assert {row["step"] for row in rows} == {80}


def the_version_is_listed(newcomer: Newcomer, line: str) -> None:
    _, shown = newcomer.terminal.type(f"{line} --output json")
    assert [row["version"] for row in json.loads(shown)] == list(newcomer.versions()), shown
    (version,) = newcomer.versions()
    succeeds(newcomer, f"python {ROOT / 'tests/docs/examples/restoring.py'} churn/models/{version}")


def unpause_in_a_running_airflow(newcomer: Newcomer, line: str) -> None:
    window = newcomer.open_terminal()
    newcomer.windows.append(window)
    window.send("airflow standalone")
    window.read_until(re.compile(rb"Airflow is ready"), "airflow standalone")
    newcomer.airflow.log_in()
    succeeds(newcomer, line)


def the_run_is_seen(newcomer: Newcomer, line: str) -> None:
    airflow, standalone = newcomer.airflow, newcomer.windows[-1]

    def finished() -> set[str]:
        standalone.drain()
        runs = airflow.request("GET", "/api/v2/dags/churn/dagRuns?state=success")["dag_runs"]
        return {run["dag_run_id"] for run in runs}

    runs, versions = finished(), newcomer.versions()
    succeeds(newcomer, line)
    (run,) = wait_for(lambda: finished() - runs, "the end of the run", RUN_DEADLINE_SECONDS, 0.5)
    instances = airflow.instances("churn", run)
    assert sorted(row["rendered_map_index"] for row in instances if row["task_id"] == "train") == REPLICAS
    (first,) = (row for row in instances if row["task_id"] == "train" and row["map_index"] == 0)
    assert first["rendered_fields"]["session_config"] == {"allow_soft_placement": True}
    lines = airflow.request("GET", f"/api/v2/dags/churn/dagRuns/{run}/taskInstances/train/logs/1?map_index=0")[
        "content"
    ]
    assert [text for text in lines if '[train 0] {"step": 80' in text["event"]]
    (version,) = newcomer.versions() - versions
    path = f"/api/v2/dags/churn/dagRuns/{run}/taskInstances/publish/xcomEntries/return_value"
    assert version in str(airflow.request("GET", path)["value"])
    the_plugin_shows_the_training(airflow, run)


def the_plugin_shows_the_training(airflow: RunningAirflow, run: str) -> None:
    """What the pages of the plugin are made of: devices, replicas, the loss curve."""
    assert [row["uuid"] for row in airflow.request("GET", "/airflow_tf/devices")["devices"]][:2] == ["cpu-0", "cpu-1"]
    base = "/airflow_tf/dags/churn/training"
    (gang,) = airflow.request("GET", f"{base}?run_id={quote(run)}")["gangs"]
    assert [(row["state"], row["step"]) for row in gang["replicas"]] == [("succeeded", 80)] * 2
    path = f"{base}/{gang['key']}/curves?run_id={quote(run)}&after=0:"
    (curve,) = airflow.request("GET", path)["curves"]
    losses = [value for _, value in curve["points"]["mse"]]
    assert len(losses) == EPOCHS
    assert losses[0] > losses[-1]


def the_mistake_is_explained(newcomer: Newcomer, line: str) -> None:
    code, shown = newcomer.terminal.type(line)
    assert code == 1, shown
    assert re.match(r"churn\.tf\.yaml:\d+:3: train\.sesion_config: ", shown), shown
    assert 'Did you mean "session_config"?' in shown
    assert "Allowed here: " in shown


STEPS: list[tuple[str, Callable[[Newcomer, str], None]]] = [
    ("airflow tf doctor", doctor_complains),
    ("airflow db migrate", succeeds),
    ("airflow tf doctor", doctor_is_content),
    ("airflow tf init churn", init_writes_the_files),
    ("cd ~/airflow/dags", succeeds),
    ("airflow tf plan churn.tf.yaml", plan_shows_all_and_does_nothing),
    ("airflow dags test churn", dags_test_publishes),
    ("airflow tasks test churn train --map-index 1", tasks_test_trains_one_replica),
    ("airflow tf runs", runs_are_listed),
    ("airflow tf checkpoints ls file://$PWD/churn/models", the_version_is_listed),
    ("airflow dags unpause churn", unpause_in_a_running_airflow),
    ("airflow dags trigger churn", the_run_is_seen),
    ("sed -i 's/session_config/sesion_config/' churn.tf.yaml", succeeds),
    ("airflow tf validate churn.tf.yaml", the_mistake_is_explained),
]


def test_the_tutorial_works_as_written(newcomer: Newcomer) -> None:
    written = re.findall(r"^\$ (.*)$", (ROOT / "docs" / "tutorial.md").read_text(), re.MULTILINE)
    assert written == [line for line, _ in STEPS]
    for line, step in STEPS:
        step(newcomer, line)
