"""Fits y = x·(1, 2, 3, 4) with Keras; each device of this process computes the gradient of its part of the batch."""

from __future__ import annotations

import os

import keras  # noqa: TID253 (a training program)
import tensorflow as tf  # noqa: TID253 (a training program)

from airflow_tf import runtime

EPOCHS = int(os.environ.get("EPOCHS", "10"))

run = runtime.context()
strategy = runtime.strategy()
x = tf.random.stateless_normal((1024, 4), seed=(1, 2))
data = tf.data.Dataset.from_tensor_slices((x, tf.linalg.matvec(x, [1.0, 2.0, 3.0, 4.0])[:, None])).batch(64)
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
checkpoint = tf.train.Checkpoint(model=model)
manager = tf.train.CheckpointManager(checkpoint, str(run.checkpoint_dir), max_to_keep=2)
first = 0
if run.resume_from:
    checkpoint.restore(run.resume_from).expect_partial()
    first = int(model.optimizer.iterations.numpy()) // len(data)
print("first epoch", first, flush=True)


def save(epoch, logs):
    manager.save(checkpoint_number=epoch + 1)
    run.report(int(model.optimizer.iterations.numpy()), loss=logs["loss"])


callback = keras.callbacks.LambdaCallback(on_epoch_end=save)
model.fit(data, initial_epoch=first, epochs=EPOCHS, verbose=0, callbacks=[callback])
devices = sorted(value.device for value in strategy.experimental_local_results(model.weights[0].value))
print("devices", len(devices), len(set(devices)), flush=True)
print("result", strategy.num_replicas_in_sync, model.get_weights()[0].ravel().tolist(), flush=True)
