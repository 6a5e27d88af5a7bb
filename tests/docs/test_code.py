"""No code block of the documentation may rot: each comes from a file that runs, or is checked here."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

EXAMPLES = Path(__file__).parent / "examples"
BLOCK = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
CHECKED = {"bash", "json"}  # below
SHOWN_ONLY = {"text", "ini"}
TYPED = {ROOT / "docs" / "tutorial.md": {"console"}, ROOT / "README.md": {"yaml"}}  # whole, in tests of their own


def blocks():
    return [(page, *found) for page in PAGES for found in BLOCK.findall(page.read_text())]


def test_code_is_included_from_files_or_of_a_language_that_is_checked():
    loose = [
        f"{page.relative_to(ROOT)}: {language}"
        for page, language, _ in blocks()
        if language not in CHECKED | SHOWN_ONLY | TYPED.get(page, set()) and not language.startswith("{")
    ]
    assert loose == []


def test_what_is_included_exists_and_is_tested():
    names = {
        (page.parent / language.split()[-1]).resolve().relative_to(ROOT).parts[0]
        for page, language, _ in blocks()
        if language.startswith("{literalinclude}")
    }
    assert names == {"dags", "docs", "tests"}  # every DAG of dags/ runs in a test; docs/reference is generated
    used = "".join(text.read_text() for text in PAGES)
    names = {str(file.relative_to(EXAMPLES)) for file in EXAMPLES.rglob("*") if file.suffix not in {"", ".pyc"}}
    unused = {name for name in names if f"examples/{name}" not in used}
    assert unused == {"migration/train.py"}  # the program of all declarations there


def test_json_can_be_read():
    found = [text for _, language, text in blocks() if language == "json"]
    assert found
    for text in found:
        json.loads(text)


def test_commands_are_those_that_there_are(capsys):
    from airflow.cli.cli_parser import get_parser

    parser = get_parser()
    lines = [line for _, language, text in blocks() if language == "bash" for line in text.splitlines()]
    typed = [words for line in lines if (words := shlex.split(line, comments=True)) and words[0] == "airflow"]
    assert typed
    for words in typed:
        parser.parse_args(words[1:])  # an unknown one exits


def test_commands_in_sentences_are_those_that_there_are():
    from airflow_tf.cli import get_cli_commands

    known = {command.name for group in get_cli_commands() for command in group.subcommands}
    named = {name for page in PAGES for name in re.findall(r"`airflow tf ([a-z][\w-]*)", page.read_text())}
    assert named - known == set()


@pytest.mark.tensorflow
def test_the_example_of_reading_reads(tmp_path):
    (tmp_path / "part.csv").write_text("a,b,c\n1,2.5,x\n2,3.5,y\n")
    program = (EXAMPLES / "reading.py").read_text() + "print(sum(len(batch[0]) for batch in rows))"
    environment = os.environ | {"AIRFLOW_TF_INPUT_TRAIN": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "2\n", done.stderr


def test_the_example_of_gpus_simulates_two(tmp_path):
    from tests.docs.examples.gpus import two_gpus

    program = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    environment = os.environ | two_gpus(tmp_path).environment
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "2\n", done.stderr
