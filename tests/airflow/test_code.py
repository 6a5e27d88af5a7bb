"""Code that changes while a run goes on: the run has what was there when it began."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.airflow.home import AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow]

DECLARATION = """\
dag_id: {name}
devices: {{kind: cpu}}
train:
  code: {code}
  working_directory: jobs
  entrypoint: jobs/fit.py
  arguments: {{source: {source}}}
evaluate:
  entrypoint: jobs/judge.py
  metric: error
checkpoints:
  publish: {models}
"""
FIT = """\
import os, pathlib, sys
assert pathlib.Path("fit.py").is_file()  # the working directory is within the code
import shared
import tensorflow as tf
source = pathlib.Path(sys.argv[1].partition("=")[2])
source.write_bytes(b"changed") if source.is_file() else (source / "shared.py").write_text("VALUE = 2.0")
tf.train.Checkpoint(weight=tf.Variable(shared.VALUE)).save(os.environ["AIRFLOW_TF_CHECKPOINT_DIR"] + "/c")
"""
JUDGE = """\
import json, os, pathlib
import shared
names = json.loads(os.environ["AIRFLOW_TF_CANDIDATES"])
pathlib.Path("evaluation.json").write_text(json.dumps({"candidates": {name: {"error": shared.VALUE} for name in names}}))
"""
FILES = {"jobs/fit.py": FIT, "jobs/judge.py": JUDGE, "shared.py": "VALUE = 1.0"}


@pytest.mark.usefixtures("no_processes_left")
def test_a_run_has_the_code_of_its_beginning(home: AirflowHome, tmp_path: Path) -> None:
    folder = tmp_path / "dags"
    (folder / "src" / "jobs").mkdir(parents=True)
    for name, text in FILES.items():
        (folder / "src" / name).write_text(text)
    with zipfile.ZipFile(folder / "src.zip", "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    (folder / "dag.py").write_text(
        "from airflow_tf.pipeline import load_dags\nload_dags(globals(), __file__)  # dag, airflow\n"
    )
    (folder / ".airflowignore").write_text("src/\n.*zip\n")
    alone = AirflowHome(home.folder, home.store, {"AIRFLOW__CORE__DAGS_FOLDER": str(folder)}, cpu_slots=1)
    origins = []
    for name, code in (("by_folder", "src"), ("by_archive", "src.zip")):
        models, source = tmp_path / name, folder / code
        text = DECLARATION.format(name=name, code=code, source=source, models=models.as_uri())
        (folder / f"{name}.tf.yaml").write_text(text)
        alone.run("dags", "test", name)
        assert (
            (source.read_bytes() == b"changed") if source.is_file() else ("2.0" in (source / "shared.py").read_text())
        )
        (manifest,) = models.glob("v=*/manifest.json")
        origin = json.loads(manifest.read_text())["origin"]
        assert list(origin["evaluation"]["candidates"].values()) == [{"error": 1.0}]
        origins.append(origin["code"])
    assert [origin["digest"] for origin in origins] == [origins[0]["digest"]] * 2
    assert [Path(origin["source"]).name for origin in origins] == ["src", "src.zip"]
    assert {origin["files"] for origin in origins} == {3}
