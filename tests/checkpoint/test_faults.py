"""Averaging that is killed, or has no room: what is there is whole, and the next try gives the same bytes."""

from __future__ import annotations

import multiprocessing
import random
import resource
import time

import numpy as np
import pytest

from airflow_tf.core.checkpoint import BundleReader, latest_complete, verify
from airflow_tf.core.checkpoint.average import average
from airflow_tf.core.errors import CheckpointError

fork = multiprocessing.get_context("fork")


@pytest.fixture
def inputs(write):
    make = np.random.default_rng(0).normal
    return [write(f"r{n}", a=make(size=1_500_000).astype("f4"), b=make(size=9).astype("f8")) for n in range(3)]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def test_an_average_killed_at_any_moment_leaves_a_whole_one_or_none(inputs, tmp_path):
    started = time.monotonic()
    average(inputs, str(tmp_path / "whole" / "ckpt"))
    seconds = time.monotonic() - started
    expected = content(tmp_path / "whole")
    moments = random.Random(7)
    folder = tmp_path / "killed"
    for _ in range(20):
        process = fork.Process(target=average, args=(inputs, str(folder / "ckpt")))
        process.start()
        process.join(moments.uniform(0, 1.2 * seconds))
        process.kill()
        process.join()
        found = latest_complete(folder)
        assert found.prefix in {None, str(folder / "ckpt")}
        assert "damaged" not in str(found.skipped)
    average(inputs, str(folder / "ckpt"))
    assert content(folder) == expected


def test_a_full_disk_is_named_and_an_older_average_stays(inputs, tmp_path):
    destination = str(tmp_path / "out" / "ckpt")
    average(inputs[:1], destination)
    before = content(tmp_path / "out")

    def limited(queue):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))  # as a full disk: a write fails midway
        try:
            average(inputs, destination)
        except CheckpointError as error:
            queue.put(str(error))

    queue = fork.SimpleQueue()
    process = fork.Process(target=limited, args=(queue,))
    process.start()
    process.join(60)
    assert "out/ckpt cannot be written: File too large. Make room, or write elsewhere." in queue.get()
    assert {name.name for name in (tmp_path / "out").iterdir()} == set(before)
    assert content(tmp_path / "out") == before


def test_an_empty_model_and_a_thousand_variables(write, tmp_path):
    average([write(name) for name in ("one", "two")], str(tmp_path / "empty" / "ckpt"))
    verify(str(tmp_path / "empty" / "ckpt"))
    many = {f"layer_{number}/kernel": np.float32([number, 1]) for number in range(1000)}
    report = average([write("three", **many), write("four", **many)], str(tmp_path / "many" / "ckpt"))
    assert report.averaged == 1000
    with BundleReader(report.destination) as reader:
        assert np.frombuffer(reader.read(b"layer_999/kernel"), "f4").tolist() == [999.0, 1.0]


def test_largest_integers_are_copied_not_added(write, tmp_path):
    largest = np.int64(2**63 - 1)
    report = average(
        [write(f"r{n}", step=largest, n=np.uint8([200])) for n in range(3)], str(tmp_path / "out" / "ckpt")
    )
    with BundleReader(report.destination) as reader:
        assert np.frombuffer(reader.read(b"step"), "i8")[0] == largest
        assert reader.read(b"n") == bytes([200])


def test_a_source_that_may_only_be_read(inputs, tmp_path):
    for path in tmp_path.glob("r?.*"):
        path.chmod(0o400)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("r?.*")}
    average(inputs, str(folder / "ckpt"))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("r?.*")} == before
