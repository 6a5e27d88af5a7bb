"""Compare candidates on the held-out months by their mean absolute error in minutes.

``AIRFLOW_TF_CANDIDATES`` names the checkpoints; the result goes to ``AIRFLOW_TF_EVALUATION_FILE`` and, as a table, to
the output. The baseline predicts the mean arrival delay of the training months for every flight.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf  # noqa: TID253 - this is a training program: it runs where TensorFlow is wanted
from model import Model, read


def mean_arrival_delay(folder: str) -> tf.Tensor:
    """Mean of the predicted quantity over all flights in a folder."""
    total, count = tf.constant(0.0, tf.float64), tf.constant(0, tf.int64)
    for _, arrival_delay in read(folder):
        total += tf.reduce_sum(tf.cast(arrival_delay, tf.float64))
        count += tf.size(arrival_delay, tf.int64)
    return tf.cast(total / tf.cast(count, tf.float64), tf.float32)


def mean_absolute_error(predict: Callable[[tf.Tensor], tf.Tensor], folder: str) -> float:
    """Mean absolute error of a predictor over all flights in a folder, in minutes."""
    total, count = 0.0, 0
    for features, arrival_delay in read(folder):
        total += float(tf.reduce_sum(tf.abs(predict(features) - arrival_delay)))
        count += int(tf.size(arrival_delay))
    return total / count


def load(prefix: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """Restore the model of a checkpoint that train.py wrote; the optimizer's state is not needed here."""
    model = Model()
    holder = tf.Module()
    holder.model = model
    checkpoint = tf.train.Checkpoint(trainer=holder)
    checkpoint.restore(prefix).assert_existing_objects_matched().expect_partial()
    return tf.function(model, reduce_retracing=True)


def main() -> None:
    holdout = os.environ["AIRFLOW_TF_INPUT_HOLDOUT"]
    constant = mean_arrival_delay(os.environ["AIRFLOW_TF_INPUT_TRAIN"])
    baselines = {"mean-predictor": {"mae": mean_absolute_error(lambda _: constant, holdout)}}
    candidates = {
        name: {"mae": mean_absolute_error(load(prefix), holdout)}
        for name, prefix in json.loads(os.environ["AIRFLOW_TF_CANDIDATES"]).items()
    }

    print(f"{'':16}{'mean absolute error on held-out months, minutes':>48}")
    for name, metrics in (baselines | candidates).items():
        print(f"{name:16}{metrics['mae']:>48.3f}", flush=True)
    result = json.dumps({"candidates": candidates, "baselines": baselines})
    Path(os.environ["AIRFLOW_TF_EVALUATION_FILE"]).write_text(result, encoding="utf-8")


if __name__ == "__main__":
    main()
