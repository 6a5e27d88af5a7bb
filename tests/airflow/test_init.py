"""The first thing a newcomer does: ``airflow tf init``, then ``airflow dags test``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from airflow_tf.cli.definition import EXAMPLES
from airflow_tf.core.cluster import STRATEGIES
from tests.airflow.home import AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow]


SLOTS = 4
"""As many as the largest of them takes."""

LEARNT = 0.05
"""Mean squared error of a model that has found the line: the data's own noise makes 0.01 of it."""

KINDS = [*(("--strategy", strategy) for strategy in STRATEGIES), *(("--example", example) for example in EXAMPLES)]


@pytest.mark.usefixtures("no_processes_left")
@pytest.mark.parametrize("words", KINDS, ids=lambda words: words[1])
def test_what_init_writes_trains_as_it_is(home: AirflowHome, tmp_path: Path, words: tuple[str, ...]) -> None:
    home.run("tf", "init", "churn", *words, "--folder", str(tmp_path))
    extra = {"AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path)}
    alone = AirflowHome(home.folder, home.store, extra, cpu_slots=SLOTS)
    assert "1 valid" in alone.run("tf", "validate", str(tmp_path / "churn.tf.yaml")).stdout
    shown = alone.run("dags", "test", "churn").stdout
    (version,) = (tmp_path / "churn" / "models").glob("v=*")
    assert (version / "_SUCCESS").exists()
    assert json.loads((version / "manifest.json").read_text())["files"]
    errors = [float(error) for error in re.findall(r"\"?mse\"?:? ([\d.e-]+)", shown)]
    assert min(errors) < LEARNT, shown
