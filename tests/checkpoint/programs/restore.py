"""Let TensorFlow restore the averages below the folder given, and compare them with means it computes itself."""

import runpy
import sys
from pathlib import Path

import keras  # noqa: TID253 - a program of its own
import numpy as np
import tensorflow as tf  # noqa: TID253 - a program of its own

ROOT = Path(sys.argv[1])
sys.argv[1] = str(ROOT / "fresh")
write = runpy.run_path(str(Path(__file__).with_name("write.py")))


def compare(name, floats):
    """Check every tensor that has a mean; return the others as TensorFlow reads them."""
    latest = tf.train.latest_checkpoint(ROOT / "average" / name)
    assert latest == str(ROOT / "average" / name / "ckpt"), latest
    inputs = [tf.train.load_checkpoint(str(ROOT / f"replica-{seed}" / name)) for seed in (1, 2)]
    averaged = tf.train.load_checkpoint(latest)
    shapes = averaged.get_variable_to_shape_map()
    assert shapes.keys() == inputs[0].get_variable_to_shape_map().keys()
    checked = 0
    for key in shapes:
        dtype = averaged.get_variable_to_dtype_map()[key]
        if (dtype.is_floating or dtype.is_complex) and not key.endswith("-values"):
            wide = np.complex128 if dtype.is_complex else np.float64
            expected = sum(reader.get_tensor(key).astype(wide) for reader in inputs) / 2
            tolerance = {tf.bfloat16: 1 / 256, tf.float16: 1 / 2048}.get(dtype, 1e-6)
            np.testing.assert_allclose(averaged.get_tensor(key).astype(wide), expected, rtol=tolerance, atol=1e-6)
            checked += 1
    assert checked == floats, checked
    return latest


checkpoint = write["keras_checkpoint"](1)
checkpoint.restore(compare("keras", 25)).assert_consumed()
assert int(checkpoint.step) == 200
assert checkpoint.low.numpy().astype("f4").tolist() == [260.0, 2.25]  # 259 lies between 258 and 260: to even
assert checkpoint.half.numpy().tolist() == [40000.0, 0.75]
assert checkpoint.text.numpy().tolist() == [b"replica", b"number 2", b""]
assert not bool(checkpoint.flag)

whole = checkpoint
names = ("step", "low", "half", "wide", "complex", "flag", "text", "random")
model = keras.models.clone_model(whole.model)  # the same layers, never compiled: it has no optimizer
others = {name: getattr(whole, name) for name in names}
checkpoint = tf.train.Checkpoint(model=model, **others)
checkpoint.restore(str(ROOT / "average" / "inference" / "ckpt")).assert_consumed()
for ours, theirs in zip(model.weights, whole.model.weights, strict=True):
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())

checkpoint = write["odd_checkpoint"](1)
checkpoint.restore(compare("odd", 1)).assert_consumed()
assert sorted(checkpoint.table.export()[0].numpy()) == [b"k2-0", b"k2-1", b"k2-2"]
assert int(next(checkpoint.iterator)) == 2

checkpoint = write["big_checkpoint"](1)
checkpoint.restore(compare("big", 2)).assert_consumed()

compare("v1", 1)

for name, tensor in write["types_checkpoint"](1).items():
    arguments = {"tensor_names": [name], "shape_and_slices": [""], "dtypes": [tensor.dtype]}
    (found,) = tf.raw_ops.RestoreV2(prefix=str(ROOT / "average" / "types" / "ckpt"), **arguments)
    expected = tensor.numpy().astype("U300" if name == "string" else complex)
    if "float" in name or "complex" in name:
        expected = [2, 0, 1]  # of 1 and 3
    assert found.dtype == tensor.dtype
    assert (found.numpy().astype("U300" if name == "string" else complex) == expected).all(), name

loaded = tf.saved_model.load(ROOT / "average" / "saved")
assert loaded.signatures["serving_default"](tf.constant([2.0]))["y"].numpy().tolist() == [3.0]
print("restored")  # noqa: T201 - what the test waits for
