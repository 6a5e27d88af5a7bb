"""Whatever bytes an index has, reading it ends with a checkpoint or with our own error, and soon."""

from __future__ import annotations

import contextlib
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_tf.core.checkpoint import BundleReader, BundleWriter, Entry, verify
from airflow_tf.core.checkpoint.average import average
from airflow_tf.core.checkpoint.snappy import decompress
from airflow_tf.core.checkpoint.table import MAGIC, read_table, write_table
from airflow_tf.core.checkpoint.wire import MalformedError, extend_crc, mask, put_varint
from airflow_tf.core.errors import CheckpointError

fuzzing = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
positions = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("whole") / "ckpt-1"
    with BundleWriter(str(prefix)) as writer:
        for number in range(40):
            writer.add(f"v{number}".encode(), Entry(1, (3,), 0, 0, 0, 0), [np.float32([1, 2, 3]).tobytes()])
        writer.add(b"step", Entry(9, (), 0, 0, 0, 0), [struct.pack("<q", 7)])
        writer.commit()
    return prefix


def use(prefix, index):
    """Do everything that a reader can do with it."""
    Path(f"{prefix}.index").write_bytes(index)
    with contextlib.suppress(CheckpointError):  # any other exception fails the test
        verify(str(prefix))
        average([str(prefix)], str(prefix.with_name("out")))


def copied(whole, tmp_path):
    name = f"{whole.name}.data-00000-of-00001"
    (tmp_path / name).write_bytes((whole.parent / name).read_bytes())
    return tmp_path / whole.name


def changed(data, changes):
    data = bytearray(data)
    for position, value in changes:
        data[position % len(data)] = value
    return bytes(data)


@fuzzing
@given(changes=positions, cut=st.integers(0, 4000))
def test_changed_bytes_of_a_file(whole, tmp_path, changes, cut):
    data = Path(f"{whole}.index").read_bytes()
    use(copied(whole, tmp_path), changed(data, changes)[: len(data) - max(cut - 3500, 0)])


@fuzzing
@given(entry=st.integers(0, 41), changes=positions, extra=st.binary(max_size=12))
def test_changed_entries_with_right_checksums(whole, tmp_path, entry, changes, extra):
    table = read_table(Path(f"{whole}.index").read_bytes())
    key = sorted(table)[entry % len(table)]
    table[key] = changed(table[key], changes) + extra if table[key] else extra
    use(copied(whole, tmp_path), write_table(sorted(table.items())))


@fuzzing
@given(changes=positions)
def test_changed_blocks_with_right_checksums(whole, tmp_path, changes):
    """The whole table in one block: its entries' lengths, restarts and keys are anything."""
    items = sorted(read_table(Path(f"{whole}.index").read_bytes()).items())[:12]
    body = b"".join(put_varint(0) + put_varint(len(k)) + put_varint(len(v)) + k + v for k, v in items)
    block = changed(body + struct.pack("<2I", 0, 1), changes)
    use(copied(whole, tmp_path), table_of(block, 0))


def table_of(block, kind):
    out = bytearray()

    def put(data, kind):
        handle = put_varint(len(out)) + put_varint(len(data))
        out.extend(data + bytes([kind]) + struct.pack("<I", mask(extend_crc(0, data + bytes([kind])))))
        return handle

    empty = struct.pack("<2I", 0, 1)
    handle = put(block, kind)
    key = b"\xff"
    entry = put_varint(0) + put_varint(len(key)) + put_varint(len(handle)) + key + handle
    footer = put(empty, 0) + put(entry + empty, 0)
    return bytes(out) + footer.ljust(40, b"\0") + struct.pack("<Q", MAGIC)


@fuzzing
@given(data=st.binary(max_size=200))
@example(b"")
def test_snappy_takes_anything(data):
    with contextlib.suppress(MalformedError):  # any other exception fails the test
        assert len(decompress(data)) <= 64 * len(data)


def literal(data):
    return (
        bytes([59 + 1 << 2]) + bytes([len(data) - 1]) + data if len(data) > 60 else bytes([len(data) - 1 << 2]) + data
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x00", b""),
        (b"\x05" + literal(b"abcde"), b"abcde"),
        (put_varint(200) + literal(b"x" * 200), b"x" * 200),
        (b"\x0b" + literal(b"abc") + bytes([8 - 4 << 2 | 1, 3]), b"abcabcabcab"),  # a copy of what it writes
        (b"\x08" + literal(b"abcd") + bytes([4 - 1 << 2 | 2, 4, 0]), b"abcdabcd"),
        (b"\x08" + literal(b"abcd") + bytes([4 - 1 << 2 | 3, 4, 0, 0, 0]), b"abcdabcd"),
    ],
)
def test_snappy_as_its_format_says(data, expected):
    assert decompress(data) == expected


def test_a_compressed_index_is_read(whole, tmp_path):
    items = sorted(read_table(Path(f"{whole}.index").read_bytes()).items())
    body = b"".join(put_varint(0) + put_varint(len(k)) + put_varint(len(v)) + k + v for k, v in items)
    block = body + struct.pack("<2I", 0, 1)
    pieces = [block[at : at + 60] for at in range(0, len(block), 60)]
    compressed = put_varint(len(block)) + b"".join(map(literal, pieces))
    assert read_table(table_of(compressed, 1)) == dict(items)
    prefix = copied(whole, tmp_path)
    Path(f"{prefix}.index").write_bytes(table_of(compressed, 1))
    verify(str(prefix))
    with pytest.raises(MalformedError, match="unknown compression 7"):
        read_table(table_of(block, 7))


def test_a_long_block_named_again_and_again_is_not_read_again(tmp_path):
    """Empty blocks have no keys that could be out of order: 2 MB of them would take minutes."""
    out = bytearray()

    def put(data):
        handle = put_varint(len(out)) + put_varint(len(data))
        out.extend(data + b"\0" + struct.pack("<I", mask(extend_crc(0, data + b"\0"))))
        return handle

    restarts = 250_000
    handle = put(struct.pack(f"<{restarts + 1}I", *[0] * restarts, restarts))
    entries = b"".join(
        put_varint(0) + put_varint(4) + put_varint(len(handle)) + struct.pack(">I", n) + handle for n in range(50_000)
    )
    footer = put(struct.pack("<2I", 0, 1)) + put(entries + struct.pack("<2I", 0, 1))
    started = time.process_time()
    with pytest.raises(MalformedError, match="not in order"):
        read_table(bytes(out) + footer.ljust(40, b"\0") + struct.pack("<Q", MAGIC))
    assert time.process_time() - started < 2


def test_big_endian_is_refused(whole, tmp_path):
    table = read_table(Path(f"{whole}.index").read_bytes())
    table[b""] = b"\x08\x01\x10\x01"  # one shard, BIG
    prefix = copied(whole, tmp_path)
    Path(f"{prefix}.index").write_bytes(write_table(sorted(table.items())))
    with pytest.raises(CheckpointError, match="big-endian"):
        BundleReader(str(prefix))
