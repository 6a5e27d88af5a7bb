"""Measures how far each candidate is from y = 3·x - 1."""

from __future__ import annotations

import json
import os
from pathlib import Path

import tensorflow as tf  # noqa: TID253 (a training program)

found = {}
for name, prefix in json.loads(os.environ["AIRFLOW_TF_CANDIDATES"]).items():
    reader = tf.train.load_checkpoint(prefix)
    values = {key: float(reader.get_tensor(f"line/{key}/.ATTRIBUTES/VARIABLE_VALUE")) for key in ("slope", "offset")}
    found[name] = {"error": abs(values["slope"] - 3.0) + abs(values["offset"] + 1.0)}
zero = {"error": 4.0}
Path(os.environ["AIRFLOW_TF_EVALUATION_FILE"]).write_text(
    json.dumps({"candidates": found, "baselines": {"zero": zero}})
)
