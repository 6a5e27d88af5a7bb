"""Predict the arrival delay of flights: an ordinary TensorFlow program, one replica of which runs per device.

It needs nothing but TensorFlow. Everything it is told comes by arguments and environment variables, so it also runs
alone: ``AIRFLOW_TF_INPUT_TRAIN=data/train AIRFLOW_TF_CHECKPOINT_DIR=/tmp/c python dags/flights/train.py --epochs=1``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys

import tensorflow as tf  # noqa: TID253 - this is a training program: it runs where TensorFlow is wanted
from model import Model, read

MOMENTUM = 0.9
STOPPED = 128 + signal.SIGTERM


class Trainer(tf.Module):
    """Model, momentum and position: everything that a checkpoint must hold to go on."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.model = Model()
        self.momentum = [tf.Variable(tf.zeros_like(weight)) for weight in self.model.trainable_variables]
        self.step = tf.Variable(0, dtype=tf.int64)
        self.epoch = tf.Variable(0, dtype=tf.int64)  # finished epochs

    @tf.function(reduce_retracing=True)
    def train(self, features: tf.Tensor, arrival_delay: tf.Tensor) -> tf.Tensor:
        """Take one step of stochastic gradient descent on the mean absolute error and return that error."""
        weights = self.model.trainable_variables
        with tf.GradientTape() as tape:
            error = tf.reduce_mean(tf.abs(self.model(features) - arrival_delay))
        for weight, momentum, gradient in zip(weights, self.momentum, tape.gradient(error, weights), strict=True):
            momentum.assign(MOMENTUM * momentum + gradient)
            weight.assign_sub(self.learning_rate * momentum)
        self.step.assign_add(1)
        return error


def report(step: int, **metrics: float) -> None:
    """Append one line of metrics for whoever watches, and print it."""
    line = json.dumps({"step": step} | metrics)
    print(line, flush=True)
    if path := os.environ.get("AIRFLOW_TF_METRICS_FILE"):
        with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123 - plain, as in most programs
            file.write(line + "\n")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=0.0025)
    parser.add_argument("--steps-per-report", type=int, default=50)
    options = parser.parse_args()

    stop_requests: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stop_requests.append(number))

    trainer = Trainer(options.learning_rate)
    checkpoint = tf.train.Checkpoint(trainer=trainer)
    manager = tf.train.CheckpointManager(checkpoint, os.environ["AIRFLOW_TF_CHECKPOINT_DIR"], max_to_keep=3)
    if resume_from := os.environ.get("AIRFLOW_TF_RESUME_FROM"):
        checkpoint.restore(resume_from).assert_consumed()
        print(f"resumed from {resume_from} at step {int(trainer.step)}", flush=True)

    for epoch in range(int(trainer.epoch), options.epochs):
        for features, arrival_delay in read(os.environ["AIRFLOW_TF_INPUT_TRAIN"], shuffle_seed=epoch):
            error = trainer.train(features, arrival_delay)
            if stop_requests:  # the interrupted epoch is repeated after a restart
                print(f"stopped at step {int(trainer.step)}, saved {manager.save()}", flush=True)
                return STOPPED
            if int(trainer.step) % options.steps_per_report == 0:
                report(int(trainer.step), mae=float(error))
        trainer.epoch.assign_add(1)
        manager.save()
    if manager.latest_checkpoint is None:  # resumed after the last epoch, into a new folder
        manager.save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
