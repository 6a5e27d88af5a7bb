"""Two towers, as TensorFlow-1 programs were written (``api: v1``): a product on each device, their sum on the CPU.

Then one model is fitted with the mean of both towers' gradients, each of which computes on its own half of a batch.
"""

from __future__ import annotations

import os
from pathlib import Path

import tensorflow as tf  # noqa: TID253 (a training program)

STEPS = int(os.environ.get("STEPS", "100"))
DEVICES = os.environ.get("TOWERS", "/gpu:0,/gpu:1").split(",")
FOLDER = os.environ.get("AIRFLOW_TF_CHECKPOINT_DIR", "checkpoints")

products = []
for device in DEVICES:
    with tf.device(device):
        a = tf.constant([1.0, 2, 3, 4, 5], shape=[3, 4])
        b = tf.constant([2.0, 4, 6, 8, 10], shape=[4, 3])
        products.append(tf.matmul(a, b))
with tf.device("/cpu:0"):
    total = tf.add_n(products)

batch = tf.random_normal([64, 4], seed=1)
labels = tf.reduce_sum(tf.mul(batch, [1.0, 2.0, 3.0, 4.0]), axis=1)
optimizer = tf.train.GradientDescentOptimizer(0.1)
gradients = []
with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
    for device, x, y in zip(DEVICES, tf.split(batch, len(DEVICES)), tf.split(labels, len(DEVICES)), strict=True):
        with tf.device(device):
            weights = tf.get_variable("weights", [4], initializer=tf.zeros_initializer())
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(x * weights, axis=1) - y))
            gradients.append(optimizer.compute_gradients(loss, [weights])[0][0])
with tf.device("/cpu:0"):
    mean = tf.add_n(gradients) / len(gradients)
    step = tf.train.get_or_create_global_step()
    train = optimizer.apply_gradients([(mean, weights)], global_step=step)

saver = tf.train.Saver()
with tf.Session() as session:
    session.run(tf.initialize_all_variables())
    resume_from = os.environ.get("AIRFLOW_TF_RESUME_FROM")
    if resume_from:
        saver.restore(session, resume_from)
    print("total", session.run(total).tolist())
    Path(FOLDER).mkdir(parents=True, exist_ok=True)
    number = session.run(step)
    print("first step", number, flush=True)
    while number < STEPS:
        session.run(train)
        number = session.run(step)
        if number % 20 == 0 or number == STEPS:
            saver.save(session, f"{FOLDER}/ckpt", global_step=step)
    print("weights", session.run(weights).tolist())
