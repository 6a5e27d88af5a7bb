"""Write, with TensorFlow, one folder of checkpoints per replica below the folder given: Keras, odd types, v1."""

import sys
from pathlib import Path

import keras  # noqa: TID253 - a program of its own
import ml_dtypes
import numpy as np
import tensorflow as tf  # noqa: TID253 - a program of its own

ROOT = Path(sys.argv[1])


def keras_checkpoint(seed):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [keras.layers.Input((4,)), keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    x = np.random.default_rng(seed).random((64, 4)).astype("f")
    model.fit(x, x.sum(1, keepdims=True), epochs=1 + seed, verbose=0)
    return tf.train.Checkpoint(
        model=model,
        step=tf.Variable(100 * seed, dtype=tf.int64),
        low=tf.Variable([256.0 + 2 * seed, 1.5 * seed], dtype=tf.bfloat16),
        half=tf.Variable([40000.0, 0.5 * seed], dtype=tf.float16),
        wide=tf.Variable([1e300 * seed, 1 / 3], dtype=tf.float64),
        complex=tf.Variable([1 + 1j * seed], dtype=tf.complex64),
        flag=tf.Variable(seed == 1),
        text=tf.Variable(["replica", f"number {seed}", ""]),
        random=tf.random.Generator.from_seed(seed),
    )


def odd_checkpoint(seed):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)
    table.insert([f"k{seed}-{i}" for i in range(seed + 1)], [float(i) for i in range(seed + 1)])
    iterator = iter(tf.data.Dataset.range(10))
    for _ in range(seed):
        next(iterator)
    return tf.train.Checkpoint(
        table=table, iterator=iterator, weight=tf.Variable([float(seed)]), step=tf.Variable(seed)
    )


def big_checkpoint(seed):
    """Several shards, and tensors longer than one chunk of the reader."""
    return tf.train.Checkpoint(
        one=tf.Variable(np.full((3, 1_500_000), seed, "f4")),
        two=tf.Variable(np.arange(1_200_001) * seed, dtype=tf.bfloat16),
    )


def v1_checkpoint(seed, prefix):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable(
            "sliced", [7, 3], partitioner=v1.fixed_size_partitioner(2), initializer=v1.constant_initializer(float(seed))
        )
        v1.train.get_or_create_global_step()
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, prefix, global_step=seed, write_meta_graph=False)


NUMPY = [
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bool",
]
ML_DTYPES = [
    "bfloat16",
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e4m3b11fnuz",
    "float8_e5m2fnuz",
    "float4_e2m1fn",
    "int4",
    "uint4",
    "int2",
    "uint2",
]
QUANTISED = ["qint8", "quint8", "qint16", "quint16", "qint32"]


def types_checkpoint(seed):
    """Return a tensor of every type of numbers, and one of text. A variant is in the odd checkpoint."""
    types = {name: np.dtype(name) for name in NUMPY} | {name: getattr(ml_dtypes, name) for name in ML_DTYPES}
    tensors = {}
    for name, dtype in types.items():
        has_mean = "float" in name or "complex" in name
        tensors[name] = tf.constant(np.array([2 * seed - 1 if has_mean else 2 - seed, 0, 1]).astype(dtype))
    for name in QUANTISED:
        tensors[name] = tf.bitcast(tensors[name[1:]], getattr(tf, name))
    return tensors | {"string": tf.constant([f"replica {seed}", "", "x" * 300])}


def save_types(tensors, prefix):
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=list(tensors), shape_and_slices=[""] * len(tensors), tensors=list(tensors.values())
    )


class Scale(tf.Module):
    """A SavedModel with a signature."""

    def __init__(self, factor):
        super().__init__()
        self.factor = tf.Variable(factor)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def __call__(self, x):
        """Multiply."""
        return {"y": self.factor * x}


for seed in (1, 2):
    folder = ROOT / f"replica-{seed}"
    keras_checkpoint(seed).save(folder / "keras" / "ckpt")
    odd_checkpoint(seed).save(folder / "odd" / "ckpt")
    sharded = tf.train.CheckpointOptions(
        experimental_sharding_callback=tf.train.experimental.MaxShardSizePolicy(max_shard_size=8 << 20)
    )
    big_checkpoint(seed).save(folder / "big" / "ckpt", options=sharded)
    save_types(types_checkpoint(seed), str(folder / "types" / "ckpt-1"))
    scale = Scale(float(seed))
    tf.saved_model.save(scale, folder / "saved", signatures=scale.__call__.get_concrete_function())
    (folder / "v1").mkdir()
    v1_checkpoint(seed, str(folder / "v1" / "model.ckpt"))
