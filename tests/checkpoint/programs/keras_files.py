"""Save two Keras models, average the files with airflow_tf, and let Keras load the result."""

import sys
from pathlib import Path

import keras  # noqa: TID253 - a program of its own
import numpy as np

from airflow_tf.core.checkpoint.hdf5 import average_keras

ROOT = Path(sys.argv[1])


def model(seed):
    keras.utils.set_random_seed(seed)
    low = keras.layers.Dense(3, dtype="bfloat16")
    made = keras.Sequential([keras.layers.Input((4,)), keras.layers.BatchNormalization(), low, keras.layers.Dense(1)])
    made.compile(keras.optimizers.Adam(1e-2), "mse")
    x = np.random.default_rng(seed).random((64, 4)).astype("f")
    made.fit(x, x.sum(1, keepdims=True), epochs=seed, verbose=0)
    return made


models = [model(seed) for seed in (1, 2)]
for ending, load in ((".keras", keras.saving.load_model), (".weights.h5", None)):
    paths = [str(ROOT / f"{number}{ending}") for number in (1, 2)]
    for made, path in zip(models, paths, strict=True):
        made.save(path) if load else made.save_weights(path)
    average_keras(paths, str(ROOT / f"out{ending}"))
    loaded = load(ROOT / f"out{ending}") if load else model(1)
    if not load:
        loaded.load_weights(ROOT / f"out{ending}")
    for ours, *theirs in zip(loaded.weights, *(made.weights for made in models), strict=True):
        values = [np.asarray(each, "f8") for each in theirs]
        np.testing.assert_allclose(np.asarray(ours, "f8"), sum(values) / 2, rtol=1 / 200, atol=1e-6)
    assert int(loaded.optimizer.iterations) == 4
print("loaded")  # noqa: T201 - what the test waits for
