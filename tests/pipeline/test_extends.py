from __future__ import annotations

from itertools import pairwise

import pytest

from airflow_tf.pipeline.build import load_dag
from airflow_tf.pipeline.declaration import load_declaration
from airflow_tf.pipeline.errors import InvalidDeclarationError
from airflow_tf.pipeline.extends import read_declaration

BASE = """\
owner: ann
tags: [shared]
devices: {count: 2, kind: cpu}
train:
  session_config:
    allow_soft_placement: true
    gpu_options: {allow_growth: true}
checkpoints: {publish: "file:///models"}
"""
OWN = """\
extends: base.yaml
dag_id: churn
tags: [own]
train:
  entrypoint: train.py
  session_config: {allow_soft_placement: false}
checkpoints: {publish: null}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").touch()

    def make(own=OWN, **files):
        for name, text in ({"base": BASE} | files).items():
            (tmp_path / f"{name}.yaml").write_text(text)
        file = tmp_path / "churn.tf.yaml"
        file.write_text(own)
        return file

    return make


def problems(file):
    with pytest.raises(InvalidDeclarationError) as caught:
        load_declaration(file)
    return [line.replace(f"{file.parent}/", "") for line in str(caught.value).splitlines()]


def test_mappings_are_merged_and_all_else_is_replaced(folder):
    declaration = load_declaration(folder()).declaration
    assert (declaration.owner, declaration.tags) == ("ann", ["own"])
    assert (declaration.devices.count, declaration.devices.kind) == (2, "cpu")
    assert declaration.train.session_config == {"allow_soft_placement": False, "gpu_options": {"allow_growth": True}}
    assert declaration.checkpoints.publish is None
    assert "publish" not in load_dag(folder()).task_ids


def test_the_base_may_extend_another(folder):
    file = folder(base="extends: deepest.yaml\nowner: ben\n", deepest=BASE)
    declaration = load_declaration(file).declaration
    assert (declaration.owner, declaration.devices.count) == ("ben", 2)


def test_an_error_names_the_file_that_it_is_in(folder):
    assert problems(folder(base=BASE.replace("cpu", "tpu")))[0].startswith(
        "base.yaml:3:21: devices.kind: 'tpu' is wrong"
    )
    assert problems(folder(base=BASE.replace("allow_growth", "alow_growth")))[0].startswith("base.yaml:7:19: train.")
    own = folder(OWN.replace("entrypoint", "entry"))
    assert [line.split(" ")[0] for line in problems(own)] == ["churn.tf.yaml:4:1:", "churn.tf.yaml:5:3:"]


def test_a_key_that_is_replaced_is_told_where_it_stands_now(folder):
    [problem] = problems(folder(OWN.replace("tags: [own]", "tags: own")))
    assert problem.startswith("churn.tf.yaml:3:1: tags: 'own' is wrong")


def test_a_base_that_is_no_yaml_is_told_with_its_own_position(folder):
    assert problems(folder(base="owner: [\n"))[0].startswith("base.yaml:2:1: not YAML")


@pytest.mark.parametrize("name", ["none.yaml", "3", "''", "[base.yaml]"])
def test_a_file_that_is_not_there_is_told(folder, name):
    [problem] = problems(folder(OWN.replace("base.yaml", name)))
    assert problem.startswith("churn.tf.yaml:1:1: extends: there is no file ")


def test_a_circle_is_told(folder):
    [problem] = problems(folder(base="extends: other.yaml\n", other="extends: base.yaml\n"))
    assert problem.startswith("other.yaml:1:1: extends: 'base.yaml' extends files in a circle")


@pytest.mark.parametrize("name", ["/base.yaml", "../base.yaml", "sub/../../base.yaml"])
def test_a_file_elsewhere_is_refused(folder, name):
    [problem] = problems(folder(OWN.replace("base.yaml", name)))
    assert problem.startswith(f"churn.tf.yaml:1:1: extends: '{name}' is not beside this file or below it")


def test_a_long_chain_is_told_as_one_and_not_as_a_circle(folder):
    names = [f"f{number}" for number in range(9)]
    chain = {name: f"extends: {after}.yaml\n" for name, after in pairwise(names)} | {names[-1]: BASE}
    [problem] = problems(folder(OWN.replace("base.yaml", "f0.yaml"), **chain))
    assert problem.startswith("f6.yaml:1:1: extends: more than 8 files extend each other")


def test_null_takes_any_key_away(folder):
    own = OWN.replace("checkpoints: {publish: null}", "checkpoints: null\ndevices: {kind: null}\nowner: null")
    declaration = load_declaration(
        folder(own.replace("session_config: {allow_soft_placement: false}", "session_config: null"))
    ).declaration
    assert (declaration.devices.count, declaration.devices.kind, declaration.owner) == (2, "auto", None)
    assert declaration.checkpoints.publish is None
    assert declaration.train.session_config == {}


def test_what_extends_nothing_is_read_as_it_is(folder):
    document = read_declaration(folder("dag_id: x\ntrain: {entrypoint: train.py}\n"))
    assert document.data == {"dag_id": "x", "train": {"entrypoint": "train.py"}}
    assert document.positions["train", "entrypoint"].file is None


def test_a_link_to_a_file_elsewhere_is_refused(folder, tmp_path_factory):
    secret = tmp_path_factory.mktemp("elsewhere") / "base.yaml"
    secret.write_text(BASE)
    file = folder(OWN.replace("base.yaml", "link.yaml"))
    (file.parent / "link.yaml").symlink_to(secret)
    [problem] = problems(file)
    assert problem.startswith("churn.tf.yaml:1:1: extends: 'link.yaml' is not beside this file or below it")
