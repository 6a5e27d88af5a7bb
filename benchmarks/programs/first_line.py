"""Leaves two times: of its first line, and when TensorFlow can be used."""

import time

first_line = time.time()

import os  # noqa: E402 (the first line is what is measured)
from pathlib import Path  # noqa: E402

import tensorflow as tf  # noqa: E402, TID253 (a user's program)

assert tf.__version__
Path(os.environ["BENCH_MARKS"], "start-" + os.environ["AIRFLOW_TF_REPLICA"]).write_text(
    f"{first_line!r}\n{time.time()!r}\n"
)
