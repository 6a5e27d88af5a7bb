"""The model, shared by train.py and export.py: y = slope · x + offset."""

from __future__ import annotations

import tensorflow as tf  # noqa: TID253 (a training program)


class Line(tf.Module):
    def __init__(self):
        super().__init__()
        self.slope = tf.Variable(0.0)
        self.offset = tf.Variable(0.0)
        self.step = tf.Variable(0, dtype=tf.int64)

    @tf.function(input_signature=[tf.TensorSpec([None], name="x")])
    def predict(self, x):
        return {"y": self.slope * x + self.offset}
