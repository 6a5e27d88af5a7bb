"""Feed one of our readers with what atheris makes up: ``targets.py NAME FOLDER CORPUS [libFuzzer options]``.

FOLDER is for the files that are read, best in memory: a file system on disk makes each run thirty times as long.
Checksums are a constant here, in the seeds too: mutation never finds a right one, and nothing behind it would be seen.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from unittest.mock import patch

import atheris
import google_crc32c

google_crc32c.extend = lambda _crc, _data: 0

with atheris.instrument_imports(include=["airflow_tf.core", "google.protobuf.text_format"]):
    from airflow_tf.core import event_files
    from airflow_tf.core.checkpoint import BundleReader, verify
    from airflow_tf.core.checkpoint.average import average
    from airflow_tf.core.checkpoint.completeness import STATE_FILE, SkippedCheckpoint, named_by_state
    from airflow_tf.core.checkpoint.dtypes import Kind
    from airflow_tf.core.checkpoint.snappy import decompress
    from airflow_tf.core.checkpoint.table import write_table
    from airflow_tf.core.checkpoint.wire import MalformedError
    from airflow_tf.core.errors import CheckpointError
    from airflow_tf.core.event_files import read_scalars

FOLDER = Path(sys.argv[2])


def index(data: bytes) -> None:
    """Do everything that a reader can do with an index, beside a shard of 4 KB."""
    prefix = FOLDER / "ckpt-1"
    prefix.with_suffix(".data-00000-of-00001").write_bytes(bytes(range(1, 17)) * 256)
    prefix.with_suffix(".index").write_bytes(data)
    with contextlib.suppress(CheckpointError):
        verify(str(prefix))
        with BundleReader(str(prefix)) as reader:
            for key, entry in reader.entries.items():
                if entry.kind is Kind.STRING:
                    reader.strings(key)
        average([str(prefix)], str(FOLDER / "average"))


def entry(data: bytes) -> None:
    """The same behind a right table: the header, or what describes a tensor."""
    table = {b"": b"\x08\x01\x1a\x02\x08\x01", b"v": b"\x08\x01\x12\x04\x12\x02\x08\x03\x28\x0c\x35\xd8\xea\x82\xa2"}
    table[b"" if data[:1] == b"h" else b"v"] = data[1:]
    index(write_table(sorted(table.items())))


def snappy(data: bytes) -> None:
    with contextlib.suppress(MalformedError):
        assert len(decompress(data)) <= 32 * len(data)


def state(data: bytes) -> None:
    (FOLDER / STATE_FILE).write_bytes(data)
    found = named_by_state(FOLDER)
    assert isinstance(found, SkippedCheckpoint) or Path(found or FOLDER / "x").parent == FOLDER


def events(data: bytes) -> None:
    """Read a file whole, in two pieces, and with every record as if it were the first: the same is found."""
    path = FOLDER / "events"
    path.write_bytes(data)
    with contextlib.suppress(MalformedError):
        whole, end = read_scalars(path)
        path.write_bytes(data[: len(data) // 2])
        first, offset = read_scalars(path)
        path.write_bytes(data)
        second, again = read_scalars(path, offset)
        with patch.object(event_files, "_read_alike", lambda _data, position, *_: position):
            plainly, _ = read_scalars(path)
        assert (str(first + second), again) == (str(whole), end)  # as text: NaN equals nothing
        assert str(plainly) == str(whole)


TARGETS = {each.__name__: each for each in (index, entry, snappy, state, events)}

if __name__ == "__main__":
    name, _, *options = sys.argv[1:]
    atheris.Setup([sys.argv[0], *options], TARGETS[name])
    atheris.Fuzz()
