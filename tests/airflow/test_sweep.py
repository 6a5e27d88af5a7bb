"""The example of a sweep as it is shipped: trials take turns, hopeless ones are stopped, the best is published."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.airflow.home import ROOT, AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow]

ALL = {0, 1, 2, 3}
HOPELESS = {2, 3}


NAMES = [f"rate={rate} momentum={momentum}" for rate in (0.1, 0.0001) for momentum in (0.0, 0.5)]


def names_of_trials(home: AirflowHome) -> list[str]:
    """What Airflow's grid, and our page, call each trial."""
    with contextlib.closing(sqlite3.connect(home.folder / "airflow.db")) as database:
        query = "SELECT rendered_map_index FROM task_instance WHERE dag_id = 'sweep' AND task_id = 'train'"
        return [name for (name,) in database.execute(f"{query} ORDER BY map_index")]


@pytest.mark.usefixtures("no_processes_left")
def test_trials_take_turns_hopeless_ones_are_stopped_and_the_best_is_published(
    home: AirflowHome, tmp_path: Path
) -> None:
    folder = tmp_path / "examples"
    shutil.copytree(ROOT / "dags" / "sweep", folder / "sweep")
    for file in ("sweep.py", "sweep.tf.yaml", ".airflowignore"):
        shutil.copy(ROOT / "dags" / file, folder / file)
    extra = {"AIRFLOW__CORE__DAGS_FOLDER": str(folder), "AIRFLOW_VAR_FLIGHTS": tmp_path.as_uri()}
    shown = AirflowHome(home.folder, home.store, extra, cpu_slots=1).run("dags", "test", "sweep").stdout
    order = [int(number) for number in re.findall(r"trial (\d) of 4: ", shown)]  # Airflow chooses it
    assert set(order) == ALL
    stopped = {
        int(number) for number in re.findall(r"trial (\d) \(rate=0.0001 momentum=0.\d\): stopped early: ", shown)
    }
    assert stopped >= HOPELESS & set(order[3:])  # it comes after both good ones
    assert stopped <= HOPELESS & set(order[2:])
    names = names_of_trials(home)
    assert [name.removesuffix(" (stopped early)") for name in names] == NAMES
    assert {number for number, name in enumerate(names) if name != NAMES[number]} == stopped
    assert "best: trial 1 (rate=0.1 momentum=0.5), loss " in shown
    (version,) = (tmp_path / "sweep").glob("v=*")
    made = json.loads((version / "manifest.json").read_text())["origin"]["aggregation"]
    assert made["trial"] == {"rate": 0.1, "momentum": 0.5}
    assert {row["trial"] for row in made["trials"] if row["state"] == "stopped early"} == stopped
