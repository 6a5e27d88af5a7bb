"""Every key of a declaration, misspelt, repeated or given a wrong value: the error names its line and the key."""

from __future__ import annotations

import contextlib

import pytest

from airflow_tf.pipeline.declaration import load_declaration
from airflow_tf.pipeline.errors import InvalidDeclarationError
from airflow_tf.pipeline.yaml_reader import read_yaml
from tests.pipeline.declarations import write

WHOLE = """\
version: 1
dag_id: churn
schedule: "@daily"
start_date: 2026-03-01
catchup: true
max_active_runs: 2
owner: ann
retries: 1
retry_delay: 5m
callbacks:
  on_failure: tests.pipeline.callbacks.page
  on_success: tests.pipeline.callbacks.page
  on_task_execute: tests.pipeline.callbacks.page
  on_task_failure: tests.pipeline.callbacks.page
  on_task_retry: tests.pipeline.callbacks.page
  on_task_skipped: tests.pipeline.callbacks.page
  on_task_success:
    call: tests.pipeline.callbacks.page
    arguments: {urgent: true}
description: Who leaves
tags: [a]
params:
  epochs: {type: integer, default: 3, minimum: 1}
hdfs_conn_id: cluster
inputs:
  train:
    uri: hdfs://namenode:8020/churn/*.csv
    hdfs_conn_id: other
    shard: files
    check:
      format: csv
      columns: [int32]
      header: true
      delimiter: ";"
      encoding: utf-8
      full: true
devices:
  count: 2
  kind: cpu
  per_replica: 1
  min_free_memory: 1GiB
  max_utilization: 20%
  names: [a]
  uuids: [b]
  share: 0.5
  per_host: 2
  priority: 1
  time_limit: 2h
  timeout: 2h
  poke_interval: 1m
  deferrable: false
train:
  code: .
  working_directory: .
  entrypoint: train.py
  strategy: independent
  success: all
  start_timeout: 5m
  progress_timeout: 5m
  memory_limit: 1GiB
  arguments: {epochs: 3}
  environment: {LEVEL: 1}
  session_config:
    allow_soft_placement: true
    gpu_options:
      allow_growth: true
  api: tf2
  python: /usr/bin/python3
  start_method: zygote
  restarts: 1
  kill_grace_seconds: 30
  retries: 2
  retry_delay: 90s
  execution_timeout: 2h
  deferrable: false
evaluate:
  entrypoint: package.module:main
  arguments: {rows: 1}
  metric: mae
  mode: min
  inputs: [train]
approval:
  subject: Publish?
  body: Look.
  timeout: 2d
  users: [ann]
checkpoints:
  aggregate: average
  weights: samples
  not_finite: refuse
  optimizer: drop
  initial_checkpoint: latest
  fresh: false
  allow_from_scratch: true
  publish: hdfs://namenode:8020/models/churn
  keep:
    last: 2
    best: 1
    every: 2
    younger_than: 2d
  hdfs_conn_id: other
"""
LINES = WHOLE.splitlines()


def keys():
    """Return path and line (from 0) of each key that stands on a line of its own and has a name of ours."""
    found = []
    stack: list[tuple[int, str]] = []
    for number, line in enumerate(LINES):
        indent, name = len(line) - len(line.lstrip()), line.strip().partition(":")[0]
        while stack and stack[-1][0] >= indent:
            stack.pop()
        stack.append((indent, name))
        path = tuple(part for _, part in stack)
        if path not in {("inputs", "train"), ("params", "epochs")}:
            found.append((path, number, indent))
    return found


def errors(tmp_path, lines):
    with pytest.raises(InvalidDeclarationError) as caught:
        load_declaration(write(tmp_path, "\n".join(lines) + "\n"))
    return [(problem.position[:2], str(problem.message)) for problem in caught.value.problems]


def test_the_whole_is_valid_and_has_most_keys(tmp_path):
    file = write(tmp_path, WHOLE)
    load_declaration(file)
    assert len(read_yaml(file).positions) > len(keys()) > 70


def test_a_misspelt_key_is_named_with_its_place(tmp_path):
    for path, number, indent in keys():
        name = path[-1]
        lines = [*LINES[:number], LINES[number].replace(f"{name}:", f"{name}x:", 1), *LINES[number + 1 :]]
        found = errors(tmp_path, lines)
        assert any(place == (number + 1, indent + 1) and f"{name}x" in text for place, text in found), (path, found)


def test_a_repeated_key_is_named_with_its_place(tmp_path):
    for path, number, indent in keys():
        if LINES[number].endswith(":"):
            continue
        found = errors(tmp_path, [*LINES[: number + 1], LINES[number], *LINES[number + 1 :]])
        assert found[0][0] == (number + 2, indent + 1), path
        assert f"{path[-1]}: repeated key" in found[0][1], path


@pytest.mark.parametrize("value", ["[[1], {a: b}]", "{a: {b: [c]}}"])
def test_a_wrong_value_is_named_with_its_key_and_line(tmp_path, value):
    for path, number, _ in keys():
        if LINES[number].endswith(":"):
            continue
        name = path[-1]
        lines = [*LINES[:number], f"{LINES[number].partition(':')[0]}: {value}", *LINES[number + 1 :]]
        found = errors(tmp_path, lines)
        assert any(place[0] == number + 1 and name in text for place, text in found), (path, found)


@pytest.mark.parametrize(
    "value",
    [
        "null",
        "3",
        "-1",
        "0.5",
        "true",
        "text",
        "''",
        "[]",
        "{}",
        "[null]",
        "2026-01-01",
        "'{{ x }}'",
        "'{{'",
        "99999999999999999999",
    ],
)
def test_no_value_ends_in_another_error_than_ours(tmp_path, value):
    for _, number, _ in keys():
        if LINES[number].endswith(":"):
            continue
        text = "\n".join([*LINES[:number], f"{LINES[number].partition(':')[0]}: {value}", *LINES[number + 1 :]])
        with contextlib.suppress(InvalidDeclarationError):  # whether it is valid is asked elsewhere
            load_declaration(write(tmp_path, text + "\n"))


def test_a_missing_line_ends_in_our_error_or_in_a_declaration(tmp_path):
    for number in range(len(LINES)):
        with contextlib.suppress(InvalidDeclarationError):
            load_declaration(write(tmp_path, "\n".join([*LINES[:number], *LINES[number + 1 :]]) + "\n"))


def test_a_key_in_the_wrong_place_is_named_with_its_line(tmp_path):
    """Each key with a value of its own, moved to the top: most belong nowhere there, some are there already."""
    top = {path[0] for path, _, indent in keys() if indent == 0}
    for path, number, indent in keys():
        name = path[-1]
        if indent == 0 or LINES[number].endswith(":"):
            continue
        rest = [line for other, line in enumerate(LINES) if other != number]
        found = errors(tmp_path, [*rest, LINES[number].strip()]) if name not in top else [((len(LINES), 1), name)]
        assert any(place[0] == len(LINES) and name in text for place, text in found), (path, found)


def test_every_key_that_a_declaration_needs_is_asked_for_by_its_section(tmp_path):
    for section, name in (((), "dag_id"), ((), "train"), (("train",), "entrypoint"), (("evaluate",), "metric")):
        start = next(number for path, number, _ in keys() if path == (*section, name))
        end = next((n for p, n, i in keys() if n > start and i <= len(section) * 2), len(LINES))
        found = errors(tmp_path, [*LINES[:start], *LINES[end:]])
        assert any(".".join((*section, name)) + ": missing. Add it." in text for _, text in found), (name, found)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", (1, 1), "the file is empty"),
        ("# only a comment\n", (1, 1), "the file is empty"),
        ("- dag_id: churn\n", (1, 1), "the file holds a list, not keys with values"),
        ("churn\n", (1, 1), "the file holds a single value"),
        (WHOLE.replace("  count: 2", "\tcount: 2"), None, "a tab indents the line"),
        (WHOLE.replace("  entrypoint: train.py", "  <<: {a: 1}\n  entrypoint: train.py"), None, "merge keys (<<) are not supported"),
        (WHOLE.encode("utf-16"), (1, 1), "the text is UTF-16. Save it as UTF-8."),
        (WHOLE.encode("utf-16-be"), (1, 1), "the text is UTF-16"),
        (b"\xef\xbb\xbf" + WHOLE.replace("  count: 2", "  cuont: 2").encode(), None, "devices.cuont: unknown key"),
        (WHOLE.replace("  count: 2", "  cuont: 2").replace("\n", "\r\n"), None, "devices.cuont: unknown key"),
        (WHOLE.replace("  count: 2", "  count: 2\r"), None, None),
    ],
)  # fmt: skip
def test_what_an_editor_may_do_to_a_file_is_told_or_changes_nothing(tmp_path, text, place, message):
    file = write(tmp_path, text)
    if message is None:
        load_declaration(file)
        return
    number = next((n for n, line in enumerate(LINES, 1) if "count: 2" in line), 0) if "train.py" not in message else 0
    with pytest.raises(InvalidDeclarationError) as caught:
        load_declaration(file)
    [problem] = caught.value.problems
    assert message in str(problem.message)
    if place is not None:
        assert problem.position[:2] == place
    elif "merge" not in message:
        assert problem.position.line == number


def test_two_hundred_mutations_are_told(tmp_path):
    written = [path for path, number, _ in keys() if not LINES[number].endswith(":")]
    assert 3 * len(written) >= 200  # misspelt, repeated, wrong: each test above goes through all of them
