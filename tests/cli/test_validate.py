from __future__ import annotations

import pytest

GOOD = "dag_id: good\ntrain: {entrypoint: train.py}\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "train.py").touch()
    for name, text in {
        "good": GOOD,
        "misspelt": GOOD.replace("train:", "trian:"),
        "syntax": "dag_id: [\n",
    }.items():
        (tmp_path / f"{name}.tf.yaml").write_text(text)
    return tmp_path


def test_a_valid_file_exits_with_0(airflow_tf, files):
    assert airflow_tf("validate", files / "good.tf.yaml") == (0, "1 valid\n")


def test_all_problems_of_all_files_are_printed_with_their_positions(airflow_tf, files):
    code, printed = airflow_tf("validate", *sorted(files.glob("*.tf.yaml")))
    assert code == 1
    lines = printed.replace(f"{files}/", "").splitlines()
    assert [line[:24] for line in lines] == [
        "misspelt.tf.yaml:1:1: tr",
        "misspelt.tf.yaml:2:1: tr",
        "syntax.tf.yaml:2:1: not ",
    ]
    assert (
        'trian: unknown key. Did you mean "train"? Allowed here: approval, callbacks, catchup, checkpoints' in lines[1]
    )


def test_json_has_the_parts(airflow_tf, files):
    code, [row] = airflow_tf("validate", files / "syntax.tf.yaml", "--output", "json")
    assert code == 1
    assert (row["file"], row["line"], row["column"]) == (str(files / "syntax.tf.yaml"), 2, 1)


def test_an_entrypoint_that_its_module_does_not_have_is_a_problem(airflow_tf, files):
    (files / "program.py").write_text("import tensorflow_that_nobody_has\ndef fit(): ...\n")
    file = files / "function.tf.yaml"
    file.write_text(GOOD.replace("train.py", "'program:fitt'"))
    code, printed = airflow_tf("validate", file)
    assert code == 1
    assert "function.tf.yaml:2:9: train.entrypoint: module 'program' has no function 'fitt'" in printed
    file.write_text(GOOD.replace("train.py", "'program:fit'"))
    assert airflow_tf("validate", file)[0] == 0


def test_entrypoints_of_stages_are_told_once_with_their_paths(airflow_tf, files):
    (files / "program.py").write_text("def fit(): ...\n")
    file = files / "stages.tf.yaml"
    file.write_text(
        "dag_id: x\ntrain: {entrypoint: 'program:fitt'}\nstages:\n  a: {}\n  b: {}\n"
        "  c: {train: {entrypoint: 'program:fi'}}\n"
    )
    code, printed = airflow_tf("validate", file)
    assert code == 1
    assert [line.partition(".tf.yaml:")[2].partition(": module")[0] for line in printed.splitlines()] == [
        "2:9: train.entrypoint",
        "6:15: stages.c.train.entrypoint",
    ]


def test_a_missing_file_is_an_error(airflow_tf, files):
    code, printed = airflow_tf("validate", files / "none.tf.yaml")
    assert code == 1
    assert "none.tf.yaml:1:1: cannot be read: No such file or directory. Give the path of a declaration" in printed
