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
