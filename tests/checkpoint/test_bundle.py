"""Reader and writer: round trips, and what damaged files answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_tf.core.checkpoint import BundleReader, BundleWriter, Entry, verify
from airflow_tf.core.checkpoint.numeric import decode, encode, mean
from airflow_tf.core.checkpoint.table import read_table, write_table
from airflow_tf.core.checkpoint.wire import MalformedError, get_varint, put_varint
from airflow_tf.core.errors import CheckpointError

KEYS = st.binary(min_size=1, max_size=40)
FILES_MAY_BE_REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@given(st.dictionaries(st.binary(max_size=60), st.binary(max_size=3000), max_size=40))
def test_a_table_reads_back(table):
    assert read_table(write_table(sorted(table.items()))) == table


@given(st.integers(0, 2**64 - 1))
def test_a_varint_reads_back(value):
    data = put_varint(value)
    assert get_varint(data, 0, len(data)) == (value, len(data))


@FILES_MAY_BE_REUSED
@given(
    st.dictionaries(
        KEYS, st.tuples(st.sampled_from([1, 2, 9, 10, 14, 19]), st.lists(st.integers(0, 5), max_size=3)), max_size=8
    )
)
def test_a_checkpoint_reads_back(tmp_path, tensors):
    prefix = str(tmp_path / "ckpt")
    sizes = {1: 4, 2: 8, 9: 8, 10: 1, 14: 2, 19: 2}
    data = {}
    with BundleWriter(prefix) as writer:
        for number, (key, (dtype, shape)) in enumerate(tensors.items()):
            data[key] = bytes([number]) * (int(np.prod(shape, dtype=int)) * sizes[dtype])
            writer.add(key, Entry(dtype, tuple(shape), 0, 0, 0, 0), [data[key]])
        writer.commit()
    verify(prefix)
    with BundleReader(prefix) as reader:
        assert {key: reader.read(key) for key in reader.entries} == data
        assert {key: (entry.dtype, list(entry.shape)) for key, entry in reader.entries.items()} == tensors


@FILES_MAY_BE_REUSED
@given(st.binary(max_size=400), st.integers(0, 400))
def test_a_garbage_index_is_an_error_and_nothing_else(tmp_path, garbage, cut):
    prefix = str(tmp_path / "ckpt")
    with BundleWriter(prefix) as writer:
        writer.add(b"w", Entry(1, (2,), 0, 0, 0, 0), [bytes(8)])
        writer.commit()
    index = Path(f"{prefix}.index")
    whole = index.read_bytes()
    index.write_bytes(whole[:cut] + garbage + whole[cut + len(garbage) :])
    try:
        verify(prefix)
    except CheckpointError:
        return
    with BundleReader(prefix) as reader:  # the same bytes were spliced in, or bytes that carry no meaning
        assert {key: reader.read(key) for key in reader.entries} == {b"w": bytes(8)}


@given(st.binary(max_size=300))
def test_garbage_with_a_right_end_is_not_a_table(garbage):
    with pytest.raises(MalformedError):
        read_table(garbage + bytes([1, 2, 3, 4]).ljust(40, b"\0") + write_table([])[-8:])


@pytest.fixture
def prefix(write):
    return write("ckpt", weight=np.arange(8, dtype="f4"), step=np.int64(3))


def test_an_entry_beyond_its_shard_is_incomplete(prefix):
    shard = Path(f"{prefix}.data-00000-of-00001")
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"incomplete: ckpt.data-00000-of-00001 has 39 bytes of 40"):
        verify(prefix)


def test_a_missing_shard_is_named(prefix):
    Path(f"{prefix}.data-00000-of-00001").unlink()
    with pytest.raises(CheckpointError, match=r"ckpt.data-00000-of-00001 is missing"):
        verify(prefix)


def test_a_missing_index_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no none.index"):
        verify(str(tmp_path / "none"))


def test_a_flipped_byte_names_the_tensor(prefix):
    shard = Path(f"{prefix}.data-00000-of-00001")
    data = bytearray(shard.read_bytes())
    data[5] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointError, match="checksum of 'weight'"):
        verify(prefix)


def test_a_folder_as_index_is_an_error(tmp_path):
    (tmp_path / "ckpt.index").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        verify(str(tmp_path / "ckpt"))


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    def chunks():
        yield bytes(4)
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"), BundleWriter(str(tmp_path / "ckpt")) as writer:
        writer.add(b"w", Entry(1, (2,), 0, 0, 0, 0), chunks())
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=1, max_size=50))
def test_bfloat16_is_rounded_to_the_nearest(values):
    exact = np.array(values, "f4")
    (rounded,) = [decode(14, encode(14, exact))]
    spacing = np.maximum(np.abs(exact.astype("f8")) * 2**-8, 2**-133)  # half a unit of eight significant bits
    assert (np.abs(rounded.astype("f8") - exact.astype("f8")) <= spacing).all()


def test_sums_are_wider_than_the_stored_type():
    half = [np.full(3, 40000, "f2")] * 4
    assert encode(19, mean(19, half)) == half[0].tobytes()
    large = [np.full(3, 3e38, "f4")] * 4
    assert encode(1, mean(1, large)) == large[0].tobytes()


def test_nothing_here_imports_tensorflow():
    code = (
        "import sys, airflow_tf.core.checkpoint;"
        "sys.exit(any(name.split('.')[0] in ('tensorflow', 'keras', 'airflow', 'ml_dtypes') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
