"""Averaging that is killed, or has no room: what is there is whole, and the next try gives the same bytes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import re
import struct
import time
import zlib

import numpy as np
import pytest

from airflow_tf.core.checkpoint import BundleReader, BundleWriter, Entry, latest_complete, output, verify
from airflow_tf.core.checkpoint.average import average
from airflow_tf.core.checkpoint.wire import extend_crc, mask
from airflow_tf.core.errors import CheckpointError
from tests.storage.storage_helpers import TAKE_ALL, on_small_disk

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


AVERAGE = """
import json, pathlib, sys, zlib
from airflow_tf.core.checkpoint.average import average
from airflow_tf.core.errors import CheckpointError

disk, *inputs = sys.argv[1:]
folder, filler = pathlib.Path(disk, "out"), pathlib.Path(disk, "filler")

def try_to_average(*inputs, **options):
    try:
        average(inputs, str(folder / "ckpt"), **options)
    except CheckpointError as error:
        return str(error)
    return "averaged"

def content():
    return {path.name: zlib.crc32(path.read_bytes()) for path in folder.iterdir()}
"""


def test_a_disk_that_is_too_small_is_named_before_the_first_byte_and_an_older_average_stays(inputs, tmp_path):
    program = """
begun = []
done = [try_to_average(inputs[0]), content()]
done += [try_to_average(*inputs, on_begin=lambda *_: begun.append(1)), content(), len(begun)]
for path in folder.iterdir():
    path.unlink()
print(json.dumps([*done, try_to_average(*inputs)]))
"""
    first, before, refused, after, begun, then = on_small_disk(tmp_path, AVERAGE + program, *inputs)
    assert (first, then, begun) == ("averaged", "averaged", 0)
    assert "out/ckpt cannot be written: 5.7 MiB are needed, 2.3 MiB are free. Make room" in refused
    assert before == after
    assert before.keys() == {"checkpoint", "ckpt.index", "ckpt.data-00000-of-00001"}


@pytest.mark.parametrize(("count", "size"), [(1, 700_000), (700, 1_000)])
def test_a_disk_that_fills_up_while_an_average_is_written_leaves_no_part_and_the_next_one_is_whole(
    count, size, write, tmp_path
):
    make = np.random.default_rng(0).normal
    inputs = [write(f"r{n}", **{f"w{i}": make(size=size).astype("f4") for i in range(count)}) for n in range(2)]
    program = """
def fill(done, total):
    if done > total / 2:
        take_all(filler)

done = [try_to_average(inputs[0]), content(), try_to_average(*inputs, on_progress=fill), content()]
filler.unlink()
print(json.dumps([*done, try_to_average(*inputs), content()]))
"""
    first, before, failed, after, then, whole = on_small_disk(tmp_path, AVERAGE + TAKE_ALL + program, *inputs)
    assert (first, then) == ("averaged", "averaged")
    room = r"No space left on device \(2\.7 MiB are needed, [\d.]+ [KM]iB are free\)\. Make room"
    assert re.search(f"out/ckpt cannot be written: {room}", failed)
    assert before == after
    average(inputs, str(tmp_path / "whole" / "ckpt"))
    assert whole == {name: zlib.crc32(data) for name, data in content(tmp_path / "whole").items()}


def test_a_disk_that_fails_while_an_average_is_flushed_behind_it_is_told_at_the_end(inputs, tmp_path, monkeypatch):
    """The kernel tells of a failed flush once, to whoever flushed: the last one is fine again."""
    monkeypatch.setattr(output, "_FLUSH_BYTES", 1 << 20)
    flushes = []

    def fail_once(descriptor):
        flushes.append(descriptor)
        if len(flushes) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(output.os, "fdatasync", fail_once)
    with pytest.raises(CheckpointError, match=r"cannot be written: Input/output error"):
        average(inputs, str(tmp_path / "out" / "ckpt"))
    assert len(flushes) == 1
    assert list((tmp_path / "out").iterdir()) == []


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


def test_a_path_with_spaces(write, tmp_path):
    (tmp_path / "a run with spaces").mkdir()
    inputs = [write(f"a run with spaces/replica {n}-1", a=np.float32([n])) for n in range(2)]
    folder = tmp_path / "an average"
    average(inputs, str(folder / "the mean-1"))
    found = latest_complete(folder)
    assert (found.prefix, found.skipped) == (str(folder / "the mean-1"), ())


def test_half_floats_whose_sum_overflows_have_a_mean(write, tmp_path):
    average([write(f"r{n}", h=np.full(3, 65504, "f2")) for n in range(4)], str(tmp_path / "out" / "ckpt"))
    with BundleReader(str(tmp_path / "out" / "ckpt")) as reader:
        assert np.frombuffer(reader.read(b"h"), "f2").tolist() == [65504.0] * 3


@pytest.mark.slow
def test_a_variable_of_more_than_2_gb(tmp_path):
    """A file with a hole, so that only the average takes room."""
    count, prefix = 2**29 + 1024, str(tmp_path / "big")
    crc, zeros = 0, bytes(2**24)
    for start in range(0, 4 * count - 4, 2**24):
        crc = extend_crc(crc, zeros[: min(2**24, 4 * count - 4 - start)])
    last = struct.pack("<f", 7)
    with BundleWriter(prefix) as writer:
        os.truncate(writer.data_file, 4 * count - 4)
        writer.add(b"large", Entry(1, (count,), 0, 0, 0, 0), [])
        writer.entries[b"large"] = Entry(1, (count,), 0, 0, 4 * count, mask(extend_crc(crc, last)))
        with writer.data_file.open("ab") as file:
            file.write(last)
        writer.commit()
    report = average([prefix], str(tmp_path / "out"))
    assert report.written_bytes > 2**31
    shard = tmp_path / "out.data-00000-of-00001"
    with BundleReader(report.destination) as reader, shard.open("rb") as file:
        file.seek(4 * count - 8)
        assert file.read() == bytes(4) + last
        assert reader.entries[b"large"].size == 4 * count
    for path in tmp_path.iterdir():
        path.unlink()


def test_replicas_that_differ_are_named(write, tmp_path):
    one, other = (
        write("one-3", w=np.zeros((2, 3), "f4"), b=np.zeros(1, "f4")),
        write("other-5", w=np.zeros((3, 2), "f4")),
    )
    with pytest.raises(CheckpointError, match=r"(?s)w.*\[2, 3\].*\[3, 2\]") as found:
        average([one, other], str(tmp_path / "out"))
    assert "missing" in str(found.value)
    report = average([write("a-3", b=np.zeros(1, "f4")), write("b-5", b=np.ones(1, "f4"))], str(tmp_path / "out"))
    assert (report.steps, report.source) == ((3, 5), 1)
    assert "different steps: 3, 5" in report.notes[0]
    with pytest.raises(CheckpointError, match="missing"):
        average([one, str(tmp_path / "no-checkpoint")], str(tmp_path / "out"))
