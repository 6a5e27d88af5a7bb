"""What the documentation says must be so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from airflow_tf.pipeline.models import Spec

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


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


def test_every_key_of_the_declaration_is_documented():
    text = (ROOT / "docs" / "declaration.md").read_text()
    keys = {key for spec in Spec.__subclasses__() for key in spec.model_fields}
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []


def test_every_setting_is_documented():
    from airflow_tf.provider_info import get_provider_info

    text = (ROOT / "docs" / "operations.md").read_text()
    options = get_provider_info()["config"]["airflow_tf"]["options"]
    assert [name for name in options if f"| `{name}` |" not in text] == []


def test_every_command_is_documented():
    from airflow_tf.cli import get_cli_commands

    text = (ROOT / "docs" / "operations.md").read_text()
    names = [command.name for group in get_cli_commands() for command in group.subcommands]
    assert [name for name in names if f"`airflow tf {name}" not in text] == []
