"""The model and the input of the flights example, shared by train.py and evaluate.py."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported, or it has no effect

import tensorflow as tf  # noqa: TID253 - this is a training program: it runs where TensorFlow is wanted

COLUMNS = ("month", "day", "hour", "minute", "distance", "dep_delay", "arr_delay")
ROWS_PER_BATCH = 1024
SHUFFLED_ROWS = 200_000  # more than a replica has: lines of a month stand in order of time

# Sizes that these quantities typically have. Constants, not statistics of the data: no second pass over it is needed,
# and all replicas share them, without which their weights could not be averaged.
DELAY_SCALE = 40.0  # minutes
DISTANCE_CENTRE, DISTANCE_SCALE = 1000.0, 700.0  # miles
HOUR_CENTRE, HOUR_SCALE = 13.0, 5.0


def read(folder: str, *, shuffle_seed: int | None = None) -> tf.data.Dataset:
    """Batches of (features, arrival delay) of all CSV files in a folder.

    Lines are batched first and then decoded a batch at a time: that is more than ten times faster than row by row.
    """
    files = sorted(tf.io.gfile.glob(os.path.join(folder, "*.csv")))  # noqa: PTH118 - plain, as in most programs
    lines = tf.data.Dataset.from_tensor_slices(files).interleave(
        lambda file: tf.data.TextLineDataset(file, buffer_size=1 << 20).skip(1), cycle_length=max(len(files), 1)
    )
    if shuffle_seed is not None:
        lines = lines.shuffle(SHUFFLED_ROWS, seed=shuffle_seed)
    return lines.batch(ROWS_PER_BATCH).map(decode, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)


def decode(lines: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Parse a batch of lines; features have shape (batch, 4), the arrival delay in minutes (batch,)."""
    row = dict(zip(COLUMNS, tf.io.decode_csv(lines, [[0.0]] * len(COLUMNS)), strict=True))
    hour = (row["hour"] + row["minute"] / 60.0 - HOUR_CENTRE) / HOUR_SCALE
    distance = (row["distance"] - DISTANCE_CENTRE) / DISTANCE_SCALE
    delay = row["dep_delay"] / DELAY_SCALE
    return tf.stack([delay, distance, hour, hour * hour], axis=1), row["arr_delay"]


class Model(tf.Module):
    """A linear part plus one hidden layer; the seed gives every replica the same initial weights."""

    def __init__(self, *, hidden: int = 64, seed: int = 1) -> None:
        super().__init__()
        draw = tf.random.Generator.from_seed(seed)
        self.linear = tf.Variable(tf.zeros([4, 1]))
        self.inner = tf.Variable(draw.normal([4, hidden], stddev=0.5))
        self.inner_bias = tf.Variable(tf.zeros([hidden]))
        self.outer = tf.Variable(draw.normal([hidden, 1], stddev=0.1))
        self.bias = tf.Variable(tf.zeros([1]))

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """Predict the arrival delay in minutes, shape (batch,)."""
        hidden = tf.nn.tanh(features @ self.inner + self.inner_bias)
        return DELAY_SCALE * tf.squeeze(features @ self.linear + hidden @ self.outer + self.bias, axis=1)
