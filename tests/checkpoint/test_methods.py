"""Who is chosen, who counts how much, and what a greedy soup takes in."""

from __future__ import annotations

import math

import numpy as np
import pytest

from airflow_tf.core.checkpoint import BundleReader
from airflow_tf.core.checkpoint.average import average
from airflow_tf.core.checkpoint.methods import ema_weights, greedy_soup, ranked, weights_by
from airflow_tf.core.errors import CheckpointError

METRICS = {"a": {"mae": 3.0, "samples": 10}, "b": {"mae": 1.0, "samples": 30}, "c": {"mae": 3.0, "samples": 60}}


def values(prefix, key=b"w", dtype="f4"):
    with BundleReader(prefix) as reader:
        return np.frombuffer(reader.read(key), dtype).tolist()


def test_ranked_best_first_and_equals_in_their_order():
    assert ranked(METRICS, "mae", "min") == ["b", "a", "c"]
    assert ranked(METRICS, "mae", "max") == ["a", "c", "b"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "d has no metric 'mae': its metrics are: none"),
        ({"loss": 1.0}, "d has no metric 'mae': its metrics are: loss"),
        ({"mae": math.nan}, "metric 'mae' of d is nan"),
        ({"mae": "1"}, "metric 'mae' of d is '1'"),
        ({"mae": True}, "metric 'mae' of d is True"),
    ],
)
def test_a_metric_that_is_missing_or_no_number_is_named(row, message):
    with pytest.raises(CheckpointError, match=message):
        ranked(METRICS | {"d": row}, "mae", "min")


def test_weights_are_the_values_of_a_metric_and_must_be_positive():
    assert weights_by(METRICS, "samples") == [10.0, 30.0, 60.0]
    with pytest.raises(CheckpointError, match="d cannot be weighted by 'samples': its value is 0"):
        weights_by(METRICS | {"d": {"samples": 0}}, "samples")


@pytest.mark.parametrize("count", [1, 2, 5])
def test_ema_weights_are_those_of_the_recursion(count):
    weights = ema_weights(count, 0.9)
    assert math.isclose(math.fsum(weights), 1.0)
    inputs = np.random.default_rng(0).normal(size=count)
    state = inputs[0]
    for value in inputs[1:]:
        state = 0.9 * state + 0.1 * value
    assert math.isclose(float(np.dot(weights, inputs)), float(state))
    for decay in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(CheckpointError, match="is impossible"):
            ema_weights(count, decay)


def soup(table, mode="min"):
    return greedy_soup(list("abc"), lambda names: table["".join(names)], mode)


@pytest.mark.parametrize(
    ("table", "mode", "members", "value"),
    [
        ({"a": 3.0, "ab": 2.0, "abc": 1.0}, "min", "abc", 1.0),
        ({"a": 3.0, "ab": 3.0, "ac": 2.0}, "min", "ac", 2.0),
        ({"a": 3.0, "ab": 4.0, "ac": 4.0}, "min", "a", 3.0),
        ({"a": 3.0, "ab": 4.0, "abc": 1.0}, "max", "ab", 4.0),
        ({"a": 3.0, "ab": math.nan, "ac": 1.0}, "min", "ac", 1.0),
        ({"a": math.nan, "b": 2.0, "bc": 3.0}, "min", "b", 2.0),
    ],
)
def test_a_soup_takes_in_what_improves_it_and_nothing_else(table, mode, members, value):
    made = soup(table, mode)
    assert ("".join(made.members), made.value) == (members, value)
    assert len(made.tried) == 3


def test_a_soup_of_nothing_finite_is_refused():
    with pytest.raises(CheckpointError, match="no checkpoint has a finite metric"):
        soup({"a": math.nan, "b": math.inf, "c": math.nan})
    with pytest.raises(CheckpointError, match="no checkpoint to make a soup of"):
        greedy_soup([], lambda _names: 1.0, "min")


def test_a_weighted_average(write, tmp_path):
    prefixes = [write(f"r{n}", w=np.float32([n, 10]), h=np.float16([60000])) for n in range(3)]
    report = average(prefixes, str(tmp_path / "out"), weights=[10, 30, 60])
    assert report.weights == (0.1, 0.3, 0.6)
    assert values(report.destination) == pytest.approx([1.5, 10])
    assert values(report.destination, b"h", "f2") == [60000]  # although their plain sum overflows
    for bad in ([1, 2], [1, 2, 0], [1, 2, -1], [1, 2, math.nan]):
        with pytest.raises(CheckpointError, match="one weight greater than 0"):
            average(prefixes, str(tmp_path / "bad"), weights=bad)


def test_replicas_that_are_not_finite_are_left_out_by_choice_and_named(write, tmp_path):
    good = [write(f"r{n}", a=np.float32([n]), w=np.float32([n])) for n in range(2)]
    nan = write("nan", a=np.float32([np.nan]), w=np.float32([1]))
    inf = write("inf", a=np.float32([1]), w=np.float32([np.inf]))
    report = average([nan, *good, inf], str(tmp_path / "out"), not_finite="leave_out", weights=[5, 1, 3, 5])
    assert report.inputs == tuple(good)
    assert report.weights == (0.25, 0.75)
    assert values(report.destination) == [0.75]
    assert report.left_out == {nan: "'a' has NaN or infinite values", inf: "'w' has NaN or infinite values"}
    with pytest.raises(CheckpointError, match=r"'a' has NaN or infinite values in .*nan"):
        average([nan], str(tmp_path / "none"), not_finite="leave_out")


def test_an_average_without_optimizer_state_of_v1(write, tmp_path):
    tensors = {
        "dense/kernel": np.float32([4]),
        "dense/kernel/Adam_1": np.float32([1]),
        "beta1_power": np.float32(0.9),
        "Adam": np.float32([7]),  # a variable of that name, not a slot of another
    }
    report = average([write("one", **tensors)], str(tmp_path / "out"), optimizer="drop")
    with BundleReader(report.destination) as reader:
        assert set(reader.entries) == {b"dense/kernel", b"Adam"}
    assert (report.averaged, report.dropped) == (2, 2)
    assert report.rules["beta1_power"] == "dropped (optimizer)"


def test_small_floats_are_averaged(write, tmp_path):
    import ml_dtypes

    from airflow_tf.core.checkpoint import BundleWriter, Entry

    for number, name in ((24, "float8_e5m2"), (25, "float8_e4m3fn")):
        dtype = getattr(ml_dtypes, name)
        prefixes = []
        for replica, value in enumerate((1.0, 3.0)):
            prefixes.append(str(tmp_path / f"{name}-{replica}"))
            with BundleWriter(prefixes[-1]) as writer:
                writer.add(b"w", Entry(number, (2,), 0, 0, 0, 0), [np.array([value, 4], dtype).tobytes()])
                writer.commit()
        report = average(prefixes, str(tmp_path / f"{name}-out"))
        with BundleReader(report.destination) as reader:
            assert np.frombuffer(reader.read(b"w"), dtype).astype("f4").tolist() == [2.0, 4.0]
