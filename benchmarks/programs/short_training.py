"""A short training, used by both sides of a benchmark: prints when its first step has been taken."""

from __future__ import annotations

import os
import time
from pathlib import Path

import tensorflow as tf  # noqa: TID253 (a user's program)

STEPS = 50


def mark(what: str) -> None:
    """Leave the time of an event where the benchmark looks for it."""
    (Path(os.environ["BENCH_MARKS"]) / f"{what}-{os.getpid()}").write_text(repr(time.time()))


def main() -> None:
    """Fit a linear model for ``STEPS`` steps and save one checkpoint."""
    weights = tf.Variable(tf.zeros((4, 1)))
    features = tf.random.normal((1024, 4), seed=1)
    labels = features @ tf.constant([[1.0], [2.0], [3.0], [4.0]])

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((features @ weights - labels) ** 2)
        weights.assign_sub(0.05 * tape.gradient(loss, weights))
        return loss

    for number in range(STEPS):
        step()
        if number == 0:
            mark("first-step")
    folder = Path(os.environ.get("AIRFLOW_TF_CHECKPOINT_DIR", os.environ["BENCH_MARKS"] + f"/ck-{os.getpid()}"))
    tf.train.CheckpointManager(tf.train.Checkpoint(weights=weights), str(folder), max_to_keep=1).save()
    mark("end")


main()
