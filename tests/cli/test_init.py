from __future__ import annotations

import json
import re

import pytest

from airflow_tf.cli.definition import EXAMPLES
from airflow_tf.core.cluster import STRATEGIES
from airflow_tf.pipeline.declaration import load_declaration

FILES = {
    ".airflowignore",
    "churn.py",
    "churn.schema.json",
    "churn.tf.yaml",
    "churn/data/part-0.csv",
    "churn/data/part-1.csv",
    "churn/train.py",
}


def written(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_it_writes_a_valid_declaration_with_program_data_and_loader(airflow_tf, tmp_path):
    printed = init_whole(airflow_tf, tmp_path)
    assert f"airflow tf plan {tmp_path}/churn.tf.yaml" in printed
    declaration = load_declaration(tmp_path / "churn.tf.yaml").declaration
    assert declaration.dag_id == "churn"
    assert declaration.train.entrypoint == str(tmp_path / "churn" / "train.py")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_has_a_valid_declaration_and_a_program(airflow_tf, tmp_path, strategy):
    init_whole(airflow_tf, tmp_path, "--strategy", strategy)
    assert load_declaration(tmp_path / "churn.tf.yaml").declaration.train.strategy == strategy


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_has_a_valid_declaration_and_a_program(airflow_tf, tmp_path, example):
    init_whole(airflow_tf, tmp_path, "--example", example)
    assert f"\n{example}:" in (tmp_path / "churn.tf.yaml").read_text()


def init_whole(airflow_tf, folder, *words):
    code, printed = airflow_tf("init", "churn", *words, "--folder", folder)
    assert code == 0, printed
    assert written(folder) == FILES
    assert "1 valid" in airflow_tf("validate", folder / "churn.tf.yaml")[1]
    texts = [(folder / name).read_text() for name in ("churn.tf.yaml", "churn.py", "churn/train.py")]
    assert not re.findall("@[A-Z]+@", "".join(texts)), "a place of the template is left"
    compile(texts[-1], "train.py", "exec")
    return printed


def test_a_strategy_for_an_example_is_refused(airflow_tf, tmp_path):
    code, printed = airflow_tf("init", "churn", "--example", "sweep", "--strategy", "sync", "--folder", tmp_path)
    assert code == 1
    assert "Leave --strategy or --example away" in printed
    assert written(tmp_path) == set()


def test_the_schema_beside_it_is_the_one_that_the_command_prints(airflow_tf, tmp_path):
    airflow_tf("init", "churn", "--folder", tmp_path)
    code, printed = airflow_tf("schema")
    assert code == 0
    assert json.loads((tmp_path / "churn.schema.json").read_text()) == json.loads(printed)


def test_another_dag_beside_it_keeps_the_files_that_airflow_must_not_search(airflow_tf, tmp_path):
    (tmp_path / ".airflowignore").write_text("mine/")
    airflow_tf("init", "churn", "--folder", tmp_path)
    airflow_tf("init", "fraud", "--folder", tmp_path)
    assert (tmp_path / ".airflowignore").read_text() == "mine/\nchurn/\nfraud/\n"


def test_what_is_there_is_never_overwritten(airflow_tf, tmp_path):
    (tmp_path / "churn.py").write_text("mine")
    code, printed = airflow_tf("init", "churn", "--folder", tmp_path)
    assert code == 1
    assert f"nothing was written: {tmp_path}/churn.py exists" in printed
    assert written(tmp_path) == {"churn.py"}
    assert (tmp_path / "churn.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["../x", "a b", "1x", "", "a/b", "x.y"])
def test_a_name_that_no_folder_can_have_is_refused(airflow_tf, tmp_path, name):
    code, printed = airflow_tf("init", name, "--folder", tmp_path)
    assert code == 1
    assert "cannot name a DAG and its folder" in printed
    assert written(tmp_path) == set()


def test_a_folder_that_does_not_exist_is_said(airflow_tf, tmp_path):
    code, printed = airflow_tf("init", "churn", "--folder", tmp_path / "none")
    assert code == 1
    assert f"there is no folder {tmp_path}/none" in printed


def test_the_dag_folder_of_a_new_installation_is_made(airflow_tf, tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path / "airflow" / "dags"))
    code, printed = airflow_tf("init", "churn")
    assert code == 0, printed
    assert (tmp_path / "airflow" / "dags" / "churn.tf.yaml").exists()
