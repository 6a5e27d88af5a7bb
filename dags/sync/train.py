"""Fits y = x·(1, 2, 3, 4) by a custom loop; every worker computes the gradient of its own part of each batch.

An evaluator measures the loss of each checkpoint on other data, while the workers go on.
"""

from __future__ import annotations

import os

import tensorflow as tf  # noqa: TID253 (a training program)

from airflow_tf import runtime

STEPS = int(os.environ.get("STEPS", "200"))
GLOBAL_BATCH = 64

run = runtime.context()
strategy = runtime.strategy()


def batches(context):
    x = tf.random.stateless_normal((1024, 4), seed=(context.input_pipeline_id, 1))  # a shard of its own
    y = tf.linalg.matvec(x, [1.0, 2.0, 3.0, 4.0])
    per_replica = context.get_per_replica_batch_size(GLOBAL_BATCH)
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(per_replica)


with strategy.scope():
    weights = tf.Variable(tf.zeros(4), name="weights")
    step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name="step")
    examples = tf.Variable(0.0, name="examples")  # over all replicas, in the last step


@tf.function
def train(batch):
    def on_replica(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((tf.linalg.matvec(x, weights) - y) ** 2) / GLOBAL_BATCH
        here = tf.distribute.get_replica_context()
        gradient, seen = here.all_reduce("sum", [tape.gradient(loss, weights), tf.cast(len(y), tf.float32)])
        weights.assign_sub(0.1 * gradient)
        examples.assign(seen)
        step.assign_add(1)
        return loss

    return strategy.reduce("SUM", strategy.run(on_replica, (batch,)), axis=None)


checkpoint = tf.train.Checkpoint(weights=weights, step=step)
manager = tf.train.CheckpointManager(
    checkpoint, str(run.checkpoint_dir), max_to_keep=5
)  # an evaluator reads the last one
if run.role == "evaluator":
    x = tf.random.stateless_normal((1024, 4), seed=(99, 1))
    folder = str(run.checkpoint_dir)
    for prefix in tf.train.checkpoints_iterator(folder, timeout=1, timeout_fn=run.training_has_ended):
        checkpoint.restore(prefix).assert_consumed()
        loss = tf.reduce_mean(tf.linalg.matvec(x, weights - [1.0, 2.0, 3.0, 4.0]) ** 2)
        run.report(int(step.numpy()), holdout_loss=float(loss))
        print("evaluated", int(step.numpy()), float(loss), flush=True)
    raise SystemExit
if run.resume_from:
    checkpoint.restore(run.resume_from).assert_consumed()
first = int(step.numpy())
print("first step", first, flush=True)
iterator = iter(strategy.distribute_datasets_from_function(batches))
for number in range(first, STEPS):
    loss = train(next(iterator))
    if (number + 1) % 20 == 0:
        manager.save(checkpoint_number=number + 1)
        run.report(number + 1, loss=float(loss))
        print("step", number + 1, float(loss), flush=True)
print("result", strategy.num_replicas_in_sync, int(examples.numpy()), weights.numpy().tolist(), flush=True)
