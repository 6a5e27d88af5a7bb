"""Fits y = x·(1, 2, 3, 4) by gradient descent: how fast that goes depends on the arguments."""

from __future__ import annotations

import argparse

import tensorflow as tf  # noqa: TID253 (a training program)

from airflow_tf import runtime

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--rate", type=float, default=0.1)
parser.add_argument("--momentum", type=float, default=0.0)
options = parser.parse_args()

run = runtime.context()
x = tf.random.stateless_normal((65536, 4), seed=(1, 2))
y = tf.linalg.matvec(x, [1.0, 2.0, 3.0, 4.0])
weights, speed, step = tf.Variable(tf.zeros(4)), tf.Variable(tf.zeros(4)), tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(weights=weights, speed=speed, step=step)
manager = tf.train.CheckpointManager(checkpoint, str(run.checkpoint_dir), max_to_keep=2)
if run.resume_from:
    checkpoint.restore(run.resume_from).assert_consumed()
while step < options.steps:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
    speed.assign(options.momentum * speed - options.rate * tape.gradient(loss, weights))
    weights.assign_add(speed)
    step.assign_add(1)
    if step % 10 == 0:
        run.report(int(step), loss=float(loss))
    if step % 100 == 0:
        manager.save(int(step))
print("result", weights.numpy().tolist(), flush=True)
