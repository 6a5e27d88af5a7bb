"""``.weights.h5`` and ``.keras`` averaged; Keras itself loads the result in the test marked tensorflow."""

from __future__ import annotations

import zipfile
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

from airflow_tf.core.checkpoint.hdf5 import average_keras, verify_keras
from airflow_tf.core.errors import CheckpointError


@pytest.fixture
def write(tmp_path):
    def call(name, value, steps, shape=(3, 2)):
        path = tmp_path / name
        with h5py.File(path, "w") as file:
            file["layers/dense/vars/0"] = np.full(shape, value, "f4")
            file["optimizer/vars/0"] = np.int64(steps)
            low = file.create_dataset("layers/low/vars/0", data=np.array([value], ml_dtypes.bfloat16).view("V2"))
            low.attrs["dtype"] = "bfloat16"
            file["layers/name"] = "text"
            file["layers/empty"] = np.zeros((0, 4), "f4")
        return str(path)

    return call


def read(path):
    with h5py.File(path) as file:
        low = np.frombuffer(np.asarray(file["layers/low/vars/0"]).tobytes(), ml_dtypes.bfloat16)
        return float(file["layers/dense/vars/0"][0, 0]), int(file["optimizer/vars/0"][()]), float(low[0])


def test_floats_are_averaged_and_the_rest_is_of_the_one_that_trained_longest(write, tmp_path):
    paths = [write(f"{n}.weights.h5", value, steps) for n, (value, steps) in enumerate([(1, 5), (3, 9), (5, 7)])]
    rules = average_keras(paths, str(tmp_path / "out.weights.h5"))
    assert read(tmp_path / "out.weights.h5") == (3.0, 9, 3.0)
    assert rules == {
        "layers/dense/vars/0": "mean",
        "layers/empty": "mean",
        "layers/low/vars/0": "mean",
        "layers/name": "copied",
        "optimizer/vars/0": "copied",
    }
    average_keras(paths[:2], str(tmp_path / "weighted.weights.h5"), [0.75, 0.25])
    assert read(tmp_path / "weighted.weights.h5")[0] == 1.5


def test_pieces_add_up_and_the_same_inputs_give_the_same_bytes(write, tmp_path):
    paths = [write(f"{n}.weights.h5", n, n, (300_000, 7)) for n in (1, 2)]
    for name in "ab":
        average_keras(paths, str(tmp_path / f"{name}.weights.h5"))
    with h5py.File(tmp_path / "a.weights.h5") as file:
        assert np.unique(file["layers/dense/vars/0"][()]).tolist() == [1.5]
    assert (tmp_path / "a.weights.h5").read_bytes() == (tmp_path / "b.weights.h5").read_bytes()


def test_what_is_damaged_different_or_not_finite_is_refused_and_nothing_is_left(write, tmp_path):
    one, nan, other = write("1.weights.h5", 1, 1), write("2.weights.h5", np.nan, 1), write("3.weights.h5", 1, 1, (4, 2))
    cut = tmp_path / "4.weights.h5"
    cut.write_bytes(Path(one).read_bytes()[:3000])
    before = sorted(tmp_path.iterdir())
    for bad, message in (
        (nan, r"'layers/dense/vars/0' has NaN or infinite values in .*2\.weights\.h5"),
        (other, r"1 difference\n- layers/dense/vars/0: float32 \[3, 2\] in .*, float32 \[4, 2\] in"),
        (str(cut), r"4\.weights\.h5 cannot be read"),
    ):
        with pytest.raises(CheckpointError, match=message):
            average_keras([one, bad], str(tmp_path / "out.weights.h5"))
    with pytest.raises(CheckpointError, match="cannot be read"):
        verify_keras(str(cut))
    assert sorted(tmp_path.iterdir()) == before


def test_a_keras_file_keeps_its_other_members_and_its_checksums_are_checked(write, tmp_path):
    paths = []
    for number in (1, 3):
        weights = write(f"{number}.weights.h5", number, number)
        paths.append(str(tmp_path / f"{number}.keras"))
        with zipfile.ZipFile(paths[-1], "w") as file:
            file.writestr("config.json", f'{{"replica": {number}}}')
            file.write(weights, "model.weights.h5")
    out = tmp_path / "out.keras"
    average_keras(paths, str(out))
    verify_keras(str(out))
    with zipfile.ZipFile(out) as file:
        assert file.read("config.json") == b'{"replica": 3}'
        (tmp_path / "inner.h5").write_bytes(file.read("model.weights.h5"))
    assert read(tmp_path / "inner.h5") == (2.0, 3, 2.0)
    data = bytearray(out.read_bytes())
    data[data.index(np.full((3, 2), 2, "f4").tobytes())] ^= 1
    out.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"the checksum of model\.weights\.h5 does not match"):
        verify_keras(str(out))


@pytest.mark.tensorflow
def test_keras_loads_the_average(tmp_path, run_tensorflow):
    assert run_tensorflow("keras_files.py", tmp_path).endswith("loaded\n")
