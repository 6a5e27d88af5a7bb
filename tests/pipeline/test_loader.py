from __future__ import annotations

from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.definitions.dag import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_tf.pipeline import load_dags, loader
from airflow_tf.pipeline.errors import InvalidDeclarationError
from airflow_tf.pipeline.extends import read_declaration
from tests.pipeline.declarations import VALID, changed, write

FOLDER_LOADER = "from airflow_tf.pipeline import load_dags  # airflow dag\n\nload_dags(globals(), __file__)\n"
MISSPELT = changed("session_config:", "sesion_config:")


def named(dag_id, text=VALID):
    return text.replace("dag_id: churn", f"dag_id: {dag_id}")


def load(folder, *name):
    namespace = {}
    load_dags(namespace, str(folder / "loader.py"), *name)
    return {dag.dag_id: dag for dag in namespace.values()}


@pytest.fixture
def wanted(monkeypatch):
    def want(dag_id):
        monkeypatch.setenv("AIRFLOW_PARSING_CONTEXT_DAG_ID", dag_id)
        monkeypatch.setattr("airflow_tf.pipeline.loader.get_parsing_context", lambda: type("C", (), {"dag_id": dag_id}))

    return want


def test_airflow_finds_the_dags_of_a_folder_with_one_bad_file_among_five(tmp_path):
    for name in "abcd":
        write(tmp_path, named(name), f"{name}.tf.yaml")
    write(tmp_path, MISSPELT, "bad.tf.yaml")
    (tmp_path / "loader.py").write_text(FOLDER_LOADER)
    bag = DagBag(str(tmp_path), bundle_name="test")
    assert bag.import_errors == {}
    assert sorted(bag.dags) == ["a", "b", "bad", "c", "d"]
    assert {dag_id for dag_id, dag in bag.dags.items() if "broken" in dag.tags} == {"bad"}


def test_a_placeholder_shows_the_errors_and_fails_with_them(tmp_path):
    write(tmp_path, MISSPELT, "bad.tf.yaml")
    dag = load(tmp_path)["bad"]
    assert 'bad.tf.yaml:17:3: train.sesion_config: unknown key. Did you mean "session_config"?' in dag.doc_md
    [task] = dag.tasks
    with pytest.raises(AirflowFailException, match=r"bad\.tf\.yaml:17:3: train\.sesion_config"):
        task.execute({})


def test_a_dag_whose_building_fails_is_not_registered_beside_its_placeholder(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no task after the first")

    monkeypatch.setattr("airflow_tf.pipeline.build._reserve", fail)
    write(tmp_path, named("half"), "file.tf.yaml")
    (tmp_path / "loader.py").write_text(FOLDER_LOADER)
    bag = DagBag(str(tmp_path), bundle_name="test")
    assert bag.import_errors == {}
    assert sorted(bag.dags) == ["file"]


def test_a_dag_that_a_file_only_builds_is_registered(tmp_path):
    file = write(tmp_path)
    lines = "from pathlib import Path\nfrom airflow_tf.pipeline import load_dag  # airflow dag\n\n"
    (tmp_path / "loader.py").write_text(f"{lines}load_dag(Path({str(file)!r}))\n")
    assert sorted(DagBag(str(tmp_path), bundle_name="test").dags) == ["churn"]


@pytest.mark.parametrize("text", ["", "a: [", b"\xff\xfea", "- x", "dag_id: 3"], ids=repr)
def test_no_file_is_too_broken_for_a_placeholder(tmp_path, text):
    write(tmp_path, text, "bad file.tf.yaml")
    write(tmp_path)
    assert sorted(load(tmp_path)) == ["bad_file", "churn"]


def test_two_declarations_of_one_dag_leave_the_first_and_show_the_second_as_broken(tmp_path):
    write(tmp_path, name="a.tf.yaml")
    write(tmp_path, name="b.tf.yaml")
    dags = load(tmp_path)
    assert sorted(dags) == ["b", "churn"]
    assert "b.tf.yaml:1:1: dag_id: 'churn' is taken: a.tf.yaml declares it." in dags["b"].doc_md


def test_a_placeholder_never_takes_the_name_of_a_good_dag(tmp_path):
    write(tmp_path, MISSPELT, "x.tf.yaml")
    write(tmp_path, named("x"), "y.tf.yaml")
    dags = load(tmp_path)
    assert sorted(dags) == ["x", "x.broken"]
    assert "broken" not in dags["x"].tags


def test_an_unexpected_error_hides_only_its_own_dag(tmp_path, monkeypatch):
    def explode(loaded):
        if loaded.declaration.dag_id == "a":
            raise RuntimeError("boom")
        return DAG(loaded.declaration.dag_id, schedule=None)

    monkeypatch.setattr("airflow_tf.pipeline.loader.build_dag", explode)
    write(tmp_path, named("a"), "a.tf.yaml")
    write(tmp_path, named("b"), "b.tf.yaml")
    dags = load(tmp_path)
    assert "a.tf.yaml: RuntimeError: boom" in dags["a"].doc_md
    assert "broken" not in dags["b"].tags


def test_only_the_wanted_dag_is_built(tmp_path, wanted):
    for name in "abc":
        write(tmp_path, named(f"dag_{name}"), f"{name}.tf.yaml")
    wanted("dag_b")
    assert list(load(tmp_path)) == ["dag_b"]


def test_for_a_wanted_dag_only_its_file_is_read(tmp_path, wanted, monkeypatch):
    for name in ("dag_a", "dag_b", "dag_b2"):
        write(tmp_path, named(f"{name}  # a comment"), f"{name}.tf.yaml")
    read = []
    monkeypatch.setattr(loader, "read_declaration", lambda file: (read.append(file.name), read_declaration(file))[1])
    wanted("dag_b")
    assert list(load(tmp_path)) == ["dag_b"]
    assert read == ["dag_b.tf.yaml"]


@pytest.mark.parametrize("line", ["'dag_id': dag_b", "dag_id:\n  dag_b", 'dag_id: "dag_\\x62"', "dag_id: 'dag_b'"])
def test_a_wanted_dag_is_found_however_its_name_is_written(tmp_path, wanted, line):
    write(tmp_path, VALID, "dag_a.tf.yaml")
    write(tmp_path, VALID.replace("dag_id: churn", line), "other.tf.yaml")
    wanted("dag_b")
    assert list(load(tmp_path)) == ["dag_b"]


@pytest.mark.parametrize(
    "first",
    [
        "'dag_id': dag_b",
        '"dag_id" : dag_b',
        'dag_id: "dag_\\x62"',
        "extends: base.yaml",
        "dag_id:\n  dag_b",
        "dag_id: dag_b ",
    ],
)
def test_for_a_task_the_same_file_is_chosen_as_for_the_whole_folder(tmp_path, wanted, first):
    write(tmp_path, "dag_id: dag_b\n", "base.yaml")
    write(tmp_path, VALID.replace("dag_id: churn", f"{first}\ndescription: first"), "a.tf.yaml")
    write(tmp_path, named("dag_b\ndescription: second"), "b.tf.yaml")
    whole = load(tmp_path)["dag_b"]
    wanted("dag_b")
    assert load(tmp_path)["dag_b"].description == whole.description == "first"


def test_a_wanted_placeholder_is_found(tmp_path, wanted):
    write(tmp_path, named("other", MISSPELT), "bad.tf.yaml")
    write(tmp_path)
    wanted("bad")
    assert list(load(tmp_path)) == ["bad"]


def test_a_loader_of_one_file_raises_its_errors(tmp_path):
    write(tmp_path, MISSPELT, "bad.tf.yaml")
    with pytest.raises(InvalidDeclarationError, match=r"bad\.tf\.yaml:17:3: train\.sesion_config"):
        load(tmp_path, "bad.tf.yaml")


def test_airflow_shows_the_errors_of_a_loader_of_one_file(tmp_path):
    write(tmp_path, MISSPELT, "bad.tf.yaml")
    write(tmp_path)
    for name in ("bad", "churn"):
        loader = FOLDER_LOADER.replace("__file__", f"__file__, '{name}.tf.yaml'")
        (tmp_path / f"{name}.py").write_text(loader)
    bag = DagBag(str(tmp_path), bundle_name="test")
    assert sorted(bag.dags) == ["churn"]
    [error] = bag.import_errors.values()
    assert 'bad.tf.yaml:17:3: train.sesion_config: unknown key. Did you mean "session_config"?' in error


def test_a_loader_of_one_file_builds_nothing_for_another_dag(tmp_path, wanted):
    write(tmp_path)
    wanted("other")
    assert load(tmp_path, "churn.tf.yaml") == {}
    wanted("churn")
    assert list(load(tmp_path, "churn.tf.yaml")) == ["churn"]


def test_an_empty_folder_is_reported(tmp_path, caplog):
    assert load(tmp_path) == {}
    assert "No declaration" in caplog.text


def folder_of_many(tmp_path):
    """Write 200 declarations, five of them broken each in its own way; return the names of these."""
    broken = {
        7: changed("  count: 2", "  cuont: 2"),
        50: changed("  holdout:", "  <<:"),
        101: "- a list\n",
        150: changed("entrypoint: train.py", "entrypoint: nowhere.py"),
        199: "dag_id: [\n",
    }
    for number in range(200):
        text = broken.get(number, VALID).replace("dag_id: churn", f"dag_id: churn_{number}")
        write(tmp_path, text, f"churn_{number}.tf.yaml")
    return [f"churn_{number}" for number in broken]


def test_five_broken_declarations_of_200_with_loaders_of_their_own_are_five_import_errors(tmp_path):
    broken = folder_of_many(tmp_path)
    for file in tmp_path.glob("*.tf.yaml"):
        name = file.name.removesuffix(".tf.yaml")
        (tmp_path / f"{name}.py").write_text(FOLDER_LOADER.replace("__file__)", f"__file__, {file.name!r})"))
    bag = DagBag(str(tmp_path), bundle_name="test")
    assert len(bag.dags) == 195
    assert sorted(Path(file).stem for file in bag.import_errors) == sorted(broken)
    for file, text in bag.import_errors.items():
        assert f"{Path(file).stem}.tf.yaml:" in text


def test_five_broken_declarations_of_200_with_one_loader_are_shown_in_their_own_places(tmp_path):
    broken = folder_of_many(tmp_path)
    (tmp_path / "all.py").write_text(FOLDER_LOADER)
    bag = DagBag(str(tmp_path), bundle_name="test")
    assert bag.import_errors == {}
    shown = {dag_id for dag_id, dag in bag.dags.items() if "broken" in dag.tags}
    assert (len(bag.dags), shown) == (200, set(broken))
    for dag_id in broken:
        assert f"{dag_id}.tf.yaml:" in bag.dags[dag_id].doc_md


@pytest.mark.parametrize("dag_id", ["inherited", "other"])
def test_a_line_that_only_looks_like_the_name_does_not_hide_an_inherited_one(tmp_path, wanted, dag_id):
    (tmp_path / "base.yaml").write_text("dag_id: inherited\n")
    looks_so = "extends: base.yaml\ndescription: 'text\n\ndag_id: other\n\n'\n"
    write(tmp_path, VALID.replace("dag_id: churn\n", looks_so), "child.tf.yaml")
    write(tmp_path, VALID.replace("dag_id: churn", "\"dag_id\": 'other'"), "other.tf.yaml")
    wanted(dag_id)
    assert list(load(tmp_path)) == [dag_id]
