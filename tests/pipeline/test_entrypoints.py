from __future__ import annotations

import sys
import zipfile

import pytest

from airflow_tf.pipeline.declaration import load_declaration
from airflow_tf.pipeline.entrypoints import missing_functions

MODULE = """
import tensorflow_that_nobody_has
from os import path as aliased

def plain(): ...
async def later(): ...
class Trainer:
    def method(self): ...
assigned = plain
try:
    import json
except ImportError:
    fallback = None
else:
    def in_else(): ...
if json:
    def in_if(): ...
"""


@pytest.fixture
def problems(tmp_path):
    package = tmp_path / "programs"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('never imported')")
    (package / "fit.py").write_text(MODULE)
    (package / "open.py").write_text("from .fit import *\n")
    (package / "broken.py").write_text("def fit(:\n")

    def check(entrypoint, rest=""):
        file = tmp_path / "x.tf.yaml"
        file.write_text(f"dag_id: x\ntrain:\n  entrypoint: {entrypoint}\n{rest}")
        return [
            problem.format(file).removeprefix(f"{tmp_path}/") for problem in missing_functions(load_declaration(file))
        ]

    return check


@pytest.mark.parametrize(
    "name", ["plain", "later", "Trainer", "assigned", "aliased", "json", "fallback", "in_else", "in_if"]
)
def test_a_function_of_the_module_is_found_without_importing_anything(problems, name):
    assert problems(f"programs.fit:{name}") == []
    assert "programs" not in sys.modules


def test_names_that_a_source_does_not_tell_are_taken_for_there(problems):
    assert problems("programs.open:anything") == []


def test_a_function_of_an_installed_package_is_found(problems):
    assert problems("json.decoder:JSONDecoder") == []


def test_a_missing_function_is_told_with_its_place_and_the_likely_one(problems):
    [problem] = problems("programs.fit:plane")
    assert problem.startswith("x.tf.yaml:3:3: train.entrypoint: module 'programs.fit' has no function 'plane'")
    assert 'Did you mean "plain"?' in problem


def test_a_method_is_no_function_of_the_module(problems):
    assert len(problems("programs.fit:method")) == 1


@pytest.mark.parametrize("module", ["no_such_module", "programs.no_such_module", "programs.fit.deeper"])
def test_a_missing_module_is_told(problems, module):
    [problem] = problems(f"{module}:main")
    assert f"no module {module!r}" in problem


def test_a_module_that_python_cannot_read_is_told(problems, tmp_path):
    [problem] = problems("programs.broken:fit")
    assert f"{tmp_path}/programs/broken.py:1: invalid syntax" in problem


@pytest.mark.parametrize("rest", ["  python: /opt/train/bin/python\n", "  environment: {PYTHONPATH: /opt/code}\n"])
def test_what_another_interpreter_may_have_is_not_looked_for(problems, rest):
    assert problems("no_such_module:main", rest) == []


def test_the_evaluation_is_looked_at_too(problems):
    [problem] = problems("programs.fit:plain", "evaluate: {entrypoint: 'programs.fit:none', metric: mae}\n")
    assert "evaluate.entrypoint" in problem


@pytest.mark.parametrize(("function", "found"), [("plain", []), ("plane", ["module 'job' has no function 'plane'"])])
def test_with_code_of_its_own_modules_are_looked_for_there(tmp_path, function, found):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "job.py").write_text(MODULE)
    file = tmp_path / "x.tf.yaml"
    file.write_text(f"dag_id: x\ntrain: {{code: src, entrypoint: 'job:{function}'}}\n")
    assert [problem.what for problem in missing_functions(load_declaration(file))] == found


def test_in_an_archive_modules_are_not_looked_for(tmp_path):
    with zipfile.ZipFile(tmp_path / "src.zip", "w") as archive:
        archive.writestr("job.py", MODULE)
    file = tmp_path / "x.tf.yaml"
    file.write_text("dag_id: x\ntrain: {code: src.zip, entrypoint: 'job:plane'}\n")
    assert missing_functions(load_declaration(file)) == []
