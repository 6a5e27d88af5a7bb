"""What the documentation says must be so."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml

from airflow_tf.pipeline.models import Spec
from airflow_tf.pipeline.schema import meanings
from tests.docs.pages import PAGES, ROOT


def test_readme_shows_the_example_that_is_tested():
    block = re.search(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    text = (ROOT / "dags" / "flights.tf.yaml").read_text()
    assert block.group(1) == "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    assert yaml.safe_load(block.group(1))["dag_id"] == "flights"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_files_exist(page):
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    named = re.findall(r"`((?:airflow_tf|dags|docs|scripts|tests)/[^`*\s]+)`", text)
    missing += [name for name in named if not (ROOT / name).exists()]
    assert missing == []


def test_every_key_of_the_declaration_has_a_meaning_and_nothing_else_has():
    keys = {model.__name__: set(model.model_fields) for model in Spec.__subclasses__()}
    assert {model: set(told) for model, told in meanings().items()} == keys


def test_every_model_of_the_declaration_has_its_table():
    text = (ROOT / "docs" / "declaration.md").read_text()
    inline = {"AtLeast"}
    assert (
        set(re.findall(r"<!-- keys of (\w+) -->", text)) == {each.__name__ for each in Spec.__subclasses__()} - inline
    )


def test_what_is_generated_is_up_to_date():
    code = "from generate import generate; print([str(p) for p, text in generate().items() if p.read_text() != text])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "docs", capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], f"run: python docs/generate.py\n{done.stdout}{done.stderr}"


def test_every_command_is_documented():
    from airflow_tf.cli import get_cli_commands

    text = (ROOT / "docs" / "operations.md").read_text()
    names = [command.name for group in get_cli_commands() for command in group.subcommands]
    assert [name for name in names if f"`airflow tf {name}" not in text] == []


def test_every_example_is_documented():
    text = (ROOT / "docs" / "examples.md").read_text()
    named = set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))
    assert named == {file.stem for file in (ROOT / "dags").glob("*.py")}
