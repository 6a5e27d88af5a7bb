"""Averaging small checkpoints: rules, refusals, determinism."""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from airflow_tf.core.checkpoint import BundleReader, BundleWriter, Entry, verify
from airflow_tf.core.checkpoint.average import average
from airflow_tf.core.checkpoint.bundle import encode_string
from airflow_tf.core.errors import CheckpointError


def floats(prefix, key, dtype="f4"):
    with BundleReader(prefix) as reader:
        return np.frombuffer(reader.read(key), dtype).tolist()


def test_the_replica_with_the_largest_step_gives_what_has_no_mean(write, tmp_path):
    prefixes = [write(f"r{n}", w=np.float32([n, 2 * n]), step=np.int64(step)) for n, step in enumerate([5, 9, 9])]
    report = average(prefixes, str(tmp_path / "out" / "ckpt"))
    assert (report.source, report.steps) == (1, (5, 9, 9))
    assert report.rules == {"step": "copied (integer)", "w": "mean"}
    assert floats(report.destination, b"w") == [1.0, 2.0]
    assert floats(report.destination, b"step", "i8") == [9]


def test_the_same_inputs_give_the_same_bytes(write, tmp_path):
    prefixes = [write(f"r{n}", w=np.random.default_rng(n).normal(size=999).astype("f4")) for n in range(3)]
    for name in "ab":
        average(prefixes, str(tmp_path / name / "ckpt"))
    first, second = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in "ab")
    assert first == second
    assert set(first) == {"checkpoint", "ckpt.index", "ckpt.data-00000-of-00001"}


def test_the_report_knows_the_bytes_of_the_data(tmp_path):
    """Of tensors in several chunks, of none, and of text, whose stored checksum is not that of its bytes."""
    text, checksum = encode_string(b"a graph")
    for number in range(2):
        with BundleWriter(str(tmp_path / f"r{number}")) as writer:
            for key, count in ((b"large", 300_001), (b"none", 0), (b"one", 1)):
                values = np.random.default_rng(number).normal(size=count).astype("f4")
                writer.add(key, Entry(1, (count,), 0, 0, 0, 0), [values.tobytes()])
            writer.add(b"text", Entry(7, (), 0, 0, 0, 0), [text], checksum)
            writer.commit()
    report = average([str(tmp_path / "r0"), str(tmp_path / "r1")], str(tmp_path / "out"))
    data = (tmp_path / "out.data-00000-of-00001").read_bytes()
    assert report.data == {"size": len(data), "crc32c": google_crc32c.value(data)}


def test_differences_in_structure_are_listed(write, tmp_path):
    one = write("one", a=np.zeros(2, "f4"), b=np.zeros(3, "f4"), c=np.zeros(1, "f4"))
    two = write("two", a=np.zeros(2, "f8"), b=np.zeros(4, "f4"), d=np.zeros(1, "f4"))
    with pytest.raises(CheckpointError) as caught:
        average([one, two], str(tmp_path / "out" / "ckpt"))
    text = str(caught.value)
    assert "4 differences" in text
    for line in ("a: float [2] in", "double [2] in", "b: float [3] in", "c: float [1] in", "d: missing in"):
        assert line in text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_names_replica_and_tensor(write, tmp_path, bad):
    one, two = write("one", w=np.float32([1, 2])), write("two", w=np.float32([1, bad]))
    with pytest.raises(CheckpointError, match=r"'w' has NaN or infinite values in .*/two\b"):
        average([one, two], str(tmp_path / "out" / "ckpt"))
    assert list((tmp_path / "out").iterdir()) == []


def test_a_damaged_input_is_refused_and_nothing_is_left(write, tmp_path):
    one, two = write("one", w=np.float32([1, 2])), write("two", w=np.float32([1, 2]))
    Path(f"{two}.data-00000-of-00001").write_bytes(bytes(8))
    with pytest.raises(CheckpointError, match=r"two is damaged: the checksum of 'w'"):
        average([one, two], str(tmp_path / "out" / "ckpt"))
    assert list((tmp_path / "out").iterdir()) == []


def test_tensors_longer_than_a_chunk(write, tmp_path):
    arrays = [np.random.default_rng(n).normal(size=(1021, 2053)).astype("f4") for n in range(2)]
    report = average([write(f"r{n}", w=array) for n, array in enumerate(arrays)], str(tmp_path / "out"))
    expected = ((arrays[0].astype("f8") + arrays[1]) / 2).astype("f4")
    assert floats(report.destination, b"w") == expected.ravel().tolist()


def test_an_average_replaces_an_older_one(write, tmp_path):
    destination = str(tmp_path / "out" / "ckpt")
    average([write("one", w=np.float32([1]))], destination)
    average([write("two", w=np.float32([2]))], destination)
    verify(destination)
    assert floats(destination, b"w") == [2.0]


def test_inputs_must_be_distinct_and_not_the_destination(write, tmp_path):
    one = write("one", w=np.float32([1]))
    for inputs, destination in (([one, one], str(tmp_path / "out")), ([one], one)):
        with pytest.raises(CheckpointError, match="given twice, or is the destination"):
            average(inputs, destination)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        average([], str(tmp_path / "out"))


def test_booleans_and_complex_numbers(write, tmp_path):
    prefixes = [write(f"r{n}", flag=np.array([n == 1]), z=np.complex64([n + 2j * n])) for n in range(2)]
    report = average(prefixes, str(tmp_path / "out"))
    assert report.rules == {"flag": "copied (boolean)", "z": "mean"}
    assert floats(report.destination, b"z", "c8") == [0.5 + 1j]
