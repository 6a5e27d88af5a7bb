"""A session config in a file of its own: found beside the declaration, judged as far as it can be before a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_tf.pipeline.build import build_dag
from airflow_tf.pipeline.declaration import load_declaration
from airflow_tf.pipeline.errors import InvalidDeclarationError
from tests.pipeline.declarations import VALID, write

CONFIG = """\
  session_config:
    allow_soft_placement: true
    gpu_options: {allow_growth: true}
"""
FILES = {
    "session.yaml": "allow_soft_placement: true\ngpu_options: {visible_device_list: '{{ replica.index }}'}",
    "session.json": '{"allow_soft_placement": true}',
    "session.pbtxt": "allow_soft_placement: true # as ever\ngpu_options { allow_growth: true }",
    "session.pbtxt.j2": "{% if replica.index %}allow_soft_placement: true{% endif %}",
    "session.j2": "allow_soft_placement: {{ params.epochs > 2 }}",
}


def declared(folder: Path, name: str, text: str | None) -> Path:
    if text is not None:
        (folder / name).write_text(text)
    assert CONFIG in VALID
    return write(folder, VALID.replace(CONFIG, f"  session_config: {name}\n"))


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_handed_on_to_the_operators(tmp_path: Path, name: str) -> None:
    loaded = load_declaration(declared(tmp_path, name, FILES[name]))
    dag = build_dag(loaded)
    assert dag.get_task("train").partial_kwargs["session_config"] == str(tmp_path / name)
    assert dag.get_task("evaluate").session_config == str(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "allow_growth: true", "a.yaml: session_config.allow_growth: unknown field of ConfigProto"),
        ("a.yaml", "ps: {device_count: {CPU: 0}}", "a.yaml: session_config.ps.device_count.CPU: a program cannot run without"),
        ("a.yaml", "a: [", "a.yaml: session_config: line 1, column 5"),
        ("a.pbtxt", "gpu_options { alow_growth: true }", "a.pbtxt: session_config.gpu_options.alow_growth: line 1, column 15"),
        ("a.json", '{"gpu_options": {"per_process_gpu_memory_fraction": 1.5}}', "fraction: 1.5 is more than the whole device"),
        ("a.j2", "{% if %}", "a.j2: malformed template, line 1"),
        ("a.yaml", None, "no file 'a.yaml': there is no file"),
        ("a.toml", None, "'a.toml' names no file with a session config. Write fields, or a file relative to this one"),
        ("a.toml.j2", "", "a.toml.j2: its ending .toml names no known form"),
        ("'{{ params.epochs }}.yaml'", None, "names no file with a session config"),
        ("[a.yaml]", None, "['a.yaml'] is not a mapping. Write keys with values below it, or name a file"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_told_with_both_files(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    with pytest.raises(InvalidDeclarationError) as caught:
        load_declaration(declared(tmp_path, name, text))
    (problem,) = caught.value.problems
    assert "churn.tf.yaml:17:3: train.session_config: " in str(caught.value)
    assert said in problem.message


@pytest.mark.parametrize(
    "name", ["../secret.yaml", "{elsewhere}/secret.yaml", "link.yaml", "below/secret.yaml", "circle.yaml", '"\\0.yaml"']
)
def test_a_file_elsewhere_is_refused_and_not_read(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "dags"
    folder.mkdir()
    (tmp_path / "secret.yaml").write_text("password: hunter2")
    (folder / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (folder / "below").symlink_to(tmp_path)
    (folder / "circle.yaml").symlink_to("circle.yaml")
    with pytest.raises(InvalidDeclarationError) as caught:
        load_declaration(declared(folder, name.format(elsewhere=tmp_path), None))
    (problem,) = caught.value.problems
    assert "is not beside this file or below it: a declaration is read from its own folder only" in problem.message
    assert "password" not in str(caught.value)


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "a.yaml").write_text("allow_soft_placement: true")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    load_declaration(declared(tmp_path, "a.yaml", None))
