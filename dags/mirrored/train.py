"""Fits y = x·(1, 2, 3, 4) with Keras; each device of this process computes the gradient of its part of the batch."""

from __future__ import annotations

import keras  # noqa: TID253 (a training program)
import tensorflow as tf  # noqa: TID253 (a training program)

from airflow_tf import runtime

run = runtime.context()
strategy = runtime.strategy()
x = tf.random.stateless_normal((1024, 4), seed=(1, 2))
data = tf.data.Dataset.from_tensor_slices((x, tf.linalg.matvec(x, [1.0, 2.0, 3.0, 4.0])[:, None])).batch(64)
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
first = 0
if run.resume_from:
    tf.train.Checkpoint(model=model).restore(run.resume_from).expect_partial()
    first = int(model.optimizer.iterations.numpy()) // len(data)
history = model.fit(data, initial_epoch=first, epochs=10, verbose=0).history
tf.train.Checkpoint(model=model).save(str(run.checkpoint_dir / "ckpt"))
run.report(int(model.optimizer.iterations.numpy()), loss=history["loss"][-1])
devices = sorted(value.device for value in strategy.experimental_local_results(model.weights[0].value))
print("devices", len(devices), len(set(devices)), flush=True)
print("result", strategy.num_replicas_in_sync, model.get_weights()[0].ravel().tolist(), flush=True)
