"""A small valid declaration, and how tests change it."""

from __future__ import annotations

from pathlib import Path

VALID = """\
dag_id: churn
schedule: "@daily"
params:
  epochs: {type: integer, default: 3, minimum: 1}
hdfs_conn_id: cluster
inputs:
  train: {uri: "hdfs://namenode:8020/churn/{{ run_id }}/*.csv", shard: files}
  holdout: hdfs://namenode:8020/holdout/*.csv
devices:
  count: 2
  kind: cpu
  min_free_memory: 1GiB
  timeout: 2h
train:
  entrypoint: train.py
  arguments: {epochs: "{{ params.epochs }}", rate: 1e-3}
  session_config:
    allow_soft_placement: true
    gpu_options: {allow_growth: true}
  retry_delay: 90s
evaluate:
  entrypoint: package.module:main
  metric: mae
  inputs: [holdout]
checkpoints:
  aggregate: average
  publish: hdfs://namenode:8020/models/churn
"""


def write(folder: Path, text: str | bytes = VALID, name: str = "churn.tf.yaml") -> Path:
    (folder / "train.py").touch()
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def changed(old: str, new: str) -> str:
    assert VALID.count(old) == 1, f"{old!r} must be in the valid declaration once"
    return VALID.replace(old, new)


def with_lines(text: str) -> str:
    return VALID + text
