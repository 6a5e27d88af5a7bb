"""Read all rows of a CSV file of five integer columns and print rows per second: ``read_csv.py WAY FILE``."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tensorflow as tf  # noqa: TID253 -- a program of the training process

from airflow_tf.runtime.reading import csv_dataset
from airflow_tf.runtime.reading_blocks import blocks_dataset, convert_csv

_COLUMNS = ("int32",) * 5
_QUEUE_ROWS = 1200


def queue_runner(file: Path) -> tuple[int, float]:
    """Read single rows by the queue runners of TensorFlow 1."""
    v1: Any = tf.compat.v1
    with tf.Graph().as_default():
        names = v1.train.string_input_producer([str(file)])
        _, line = v1.TextLineReader(skip_header_lines=0).read(names)
        row = tf.io.decode_csv(line, [[0]] * 5)
        with v1.Session() as session:
            coordinator = tf.train.Coordinator()
            threads = v1.train.start_queue_runners(sess=session, coord=coordinator)
            session.run(row)
            started = time.monotonic()
            for _ in range(_QUEUE_ROWS):
                session.run(row)
            seconds = time.monotonic() - started
            coordinator.request_stop()
            coordinator.join(threads)
    return _QUEUE_ROWS, seconds


def csv(file: Path) -> tuple[int, float]:
    """Read batches of 1024 rows."""
    return _count(csv_dataset(file, _COLUMNS))


def blocks(file: Path) -> tuple[int, float]:
    """Convert first, which is not measured; then read batches of 1024 rows."""
    with tempfile.TemporaryDirectory() as folder:
        convert_csv(file, _COLUMNS, Path(folder) / "blocks")
        return _count(blocks_dataset(Path(folder) / "blocks"))


def _count(dataset: Any) -> tuple[int, float]:  # noqa: ANN401 -- a dataset
    started = time.monotonic()
    rows = sum(int(batch[0].shape[0]) for batch in dataset)
    return rows, time.monotonic() - started


if __name__ == "__main__":
    count, seconds = {"queue_runner": queue_runner, "csv": csv, "blocks": blocks}[sys.argv[1]](Path(sys.argv[2]))
    print(count / seconds)
