"""Fits y = x·(1, 2, 3, 4) + noise by gradient descent, from a checkpoint where there is one."""

from __future__ import annotations

import argparse

import tensorflow as tf  # noqa: TID253 (a training program)

from airflow_tf import runtime

parser = argparse.ArgumentParser()
parser.add_argument("--until", type=int, required=True)
parser.add_argument("--rate", type=float, required=True)
parser.add_argument("--noise", type=float, required=True)
parser.add_argument("--seed", type=int, required=True)
options = parser.parse_args()

run = runtime.context()
x = tf.random.stateless_normal((1024, 4), seed=(options.seed, 1))
y = tf.linalg.matvec(x, [1.0, 2.0, 3.0, 4.0])
y += options.noise * tf.random.stateless_normal((1024,), seed=(options.seed, 2))
weights, step = tf.Variable(tf.zeros(4)), tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(weights=weights, step=step)
manager = tf.train.CheckpointManager(checkpoint, str(run.checkpoint_dir), max_to_keep=None)
if run.resume_from:
    checkpoint.restore(run.resume_from).assert_consumed()
else:
    manager.save(0)  # shows that all replicas began with the same weights: their average is worth something
print("begins at step", int(step), flush=True)
last = options.until
while step < last:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
    weights.assign_sub(options.rate * tape.gradient(loss, weights))
    step.assign_add(1)
run.report(int(step), loss=float(loss))
manager.save(int(step))
print("result", weights.numpy().tolist(), flush=True)
