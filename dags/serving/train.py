"""Fits y = 3·x - 1, and saves the model as its checkpoint."""

from __future__ import annotations

import os

import tensorflow as tf  # noqa: TID253 (a training program)
from model import Line

STEPS = 200

line = Line()
checkpoint = tf.train.Checkpoint(line=line)
manager = tf.train.CheckpointManager(checkpoint, os.environ["AIRFLOW_TF_CHECKPOINT_DIR"], max_to_keep=2)
if resume_from := os.environ.get("AIRFLOW_TF_RESUME_FROM"):
    checkpoint.restore(resume_from).assert_consumed()

x = tf.linspace(-1.0, 1.0, 64)
while line.step < STEPS:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((line.predict(x)["y"] - (3.0 * x - 1.0)) ** 2)
    slope, offset = tape.gradient(loss, [line.slope, line.offset])
    line.slope.assign_sub(0.3 * slope)
    line.offset.assign_sub(0.3 * offset)
    line.step.assign_add(1)
    if line.step % 100 == 0:
        manager.save(checkpoint_number=int(line.step))
        print("step", int(line.step), float(loss), flush=True)
