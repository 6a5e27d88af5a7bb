"""Code in declarations: a folder or a zip file, in which the entrypoints lie."""

from __future__ import annotations

import zipfile

import pytest

from airflow_tf.pipeline.build import load_dag
from airflow_tf.pipeline.errors import InvalidDeclarationError
from tests.pipeline.declarations import changed, write


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "src" / "jobs").mkdir(parents=True)
    (tmp_path / "src" / "jobs" / "fit.py").touch()
    (tmp_path / "text.zip").touch()
    with zipfile.ZipFile(tmp_path / "src.zip", "w") as archive:
        archive.writestr("jobs/fit.py", "")
    return tmp_path


def declared(code, entrypoint="jobs/fit.py"):
    text = changed("  entrypoint: train.py\n", f"  code: {code}\n  entrypoint: {entrypoint}\n")
    text = text.replace("aggregate: average", "export: {entrypoint: jobs/fit.py}")
    return text.replace("package.module:main", "jobs/fit.py")


@pytest.mark.parametrize("name", ["src", "src.zip"])
def test_all_programs_are_looked_for_in_the_code(folder, name):
    dag = load_dag(write(folder, declared(name)))
    train = dag.get_task("train").partial_kwargs
    assert (train["code"], train["entrypoint"]) == (str(folder / name), "jobs/fit.py")
    for task in (dag.get_task("evaluate"), dag.get_task("export")):
        assert (task.code, task.entrypoint) == (str(folder / name), "jobs/fit.py")


def test_where_the_program_begins_may_be_declared(folder):
    text = declared("src").replace("  code: src\n", "  code: src\n  working_directory: jobs\n")
    assert load_dag(write(folder, text)).get_task("train").partial_kwargs["working_directory"] == "jobs"


def test_the_code_may_be_a_template_and_is_looked_for_when_the_run_begins(folder):
    dag = load_dag(write(folder, declared("'code/{{ var.value.release }}.zip'")))
    assert dag.get_task("train").partial_kwargs["code"] == "code/{{ var.value.release }}.zip"


def test_a_task_that_starts_does_not_ask_for_what_its_run_has_copied(folder, monkeypatch):
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "churn")
    dag = load_dag(write(folder, declared("gone.zip")))
    assert dag.get_task("train").partial_kwargs["code"] == str(folder / "gone.zip")


@pytest.mark.parametrize(
    ("code", "entrypoint", "message"),
    [
        ("nowhere", "jobs/fit.py", "15:3: train.code: no code 'nowhere'"),
        ("text.zip", "jobs/fit.py", "15:3: train.code: no code 'text.zip'"),
        ("3", "jobs/fit.py", "15:3: train.code: 3 is wrong"),
        ("'{{ x'", "jobs/fit.py", "15:3: train.code: '{{ x': malformed template"),
        ("'{{ x }}'", "jobs/fit.py", "15:3: train.code: 'x' is not defined"),
        ("src", "fit.py", "16:3: train.entrypoint: no script 'fit.py': 'train.code' "),
        ("src.zip", "fit.py", "16:3: train.entrypoint: no script 'fit.py': 'train.code' "),
        ("src", "../train.py", "16:3: train.entrypoint: no script '../train.py'"),
    ],
)
def test_mistakes_are_told_where_they_are(folder, code, entrypoint, message):
    with pytest.raises(InvalidDeclarationError) as caught:
        load_dag(write(folder, declared(code, entrypoint)))
    assert message in str(caught.value)
