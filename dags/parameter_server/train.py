"""The chief schedules steps on two workers; the variables live on a parameter server."""

from __future__ import annotations

import os

import tensorflow as tf  # noqa: TID253 (a training program)

from airflow_tf import runtime

ROUNDS = int(os.environ.get("ROUNDS", "20"))

run = runtime.context()
strategy = runtime.strategy()  # returns in the chief only
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = tf.Variable(tf.zeros(4), name="weights")
    step = tf.Variable(0, dtype=tf.int64, name="step")


@tf.function
def batches():
    x = tf.random.normal((1024, 4))
    y = tf.linalg.matvec(x, [1.0, 2.0, 3.0, 4.0])
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1024).repeat().batch(32)


@tf.function
def train(iterator):
    def on_replica(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
        weights.assign_sub(0.05 * tape.gradient(loss, weights))
        step.assign_add(1)
        return loss

    return strategy.run(on_replica, (next(iterator),))


checkpoint = tf.train.Checkpoint(weights=weights, step=step)
manager = tf.train.CheckpointManager(checkpoint, str(run.checkpoint_dir), max_to_keep=2)
if run.resume_from:
    checkpoint.restore(run.resume_from)
print("first step", int(step.numpy()), flush=True)
iterator = iter(coordinator.create_per_worker_dataset(batches))
while int(step.numpy()) < 20 * ROUNDS:
    losses = [coordinator.schedule(train, args=(iterator,)) for _ in range(20)]
    coordinator.join()
    manager.save(checkpoint_number=int(step.numpy()))
    run.report(int(step.numpy()), loss=float(losses[-1].fetch()))
    print("step", int(step.numpy()), weights.device, flush=True)
print("result", int(step.numpy()), weights.numpy().tolist(), flush=True)
