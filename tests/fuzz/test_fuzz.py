"""Readers of foreign bytes under a fuzzer: they end with a value or our own error, soon, and in little memory."""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from airflow_tf.core.checkpoint import BundleWriter, Entry, wire
from airflow_tf.core.checkpoint.bundle import encode_string
from airflow_tf.core.checkpoint.completeness import STATE_FILE, write_state
from airflow_tf.core.checkpoint.table import read_table

PROGRAM = Path(__file__).with_name("targets.py")
SECONDS = 12
"""For each of five targets: a minute."""


def checkpoint(folder: Path) -> Path:
    with BundleWriter(str(folder / "ckpt-1")) as writer:
        for number, (dtype, size) in enumerate([(1, 4), (9, 8), (14, 2), (19, 2), (18, 16), (10, 1), (25, 1)]):
            writer.add(f"v{number}".encode(), Entry(dtype, (3,), 0, 0, 0, 0), [bytes(3 * size)])
        text, crc32c = encode_string(b"words")
        writer.add(b"text", Entry(7, (), 0, 0, 0, 0), [text], crc32c)
        writer.add(b"iterator", Entry(21, (), 0, 0, 0, 0), [b"\x01a\0\0\0\0"])
        writer.add(b"parts", Entry(1, (2, 2), 0, 0, 0, 0, (b"\x0a\0", b"\x0a\x04\x08\x00\x10\x01")), [])
        writer.commit()
    write_state(str(folder / "ckpt-1"))
    return folder / "ckpt-1.index"


def message(number: int, data: bytes) -> bytes:
    return wire.put_varint(number << 3 | 2) + wire.put_varint(len(data)) + data


def record(*values: bytes) -> bytes:
    event = b"\x09" + struct.pack("<d", 1.5) + b"\x10\x07" + message(5, b"".join(message(1, each) for each in values))
    length = struct.pack("<Q", len(event))
    return b"".join(part + struct.pack("<I", wire.mask(wire.extend_crc(0, part))) for part in (length, event))


def seeds(target: str, folder: Path) -> list[bytes]:
    if target == "index":
        return [checkpoint(folder).read_bytes()]
    if target == "entry":
        table = read_table(checkpoint(folder).read_bytes())
        return [(b"v" if key else b"h") + value for key, value in table.items()]
    if target == "state":
        checkpoint(folder)
        return [
            (folder / STATE_FILE).read_bytes(),
            b'model_checkpoint_path: "/a/ckpt-1"\nlast_preserved_timestamp: 1.5',
        ]
    if target == "snappy":
        return [
            b"\x0b\x08abc\x11\x03",
            b"\x08\x0cabcd\x0e\x04\x00",
            b"\x08\x0cabcd\x0f\x04\x00\x00\x00",
            b"\x01\xf0\x00a",
        ]
    float_tensor = b"\x08\x01" + message(2, b"") + message(4, np.float32(0.5).tobytes())
    scalar = message(1, b"loss") + message(8, float_tensor) + message(9, message(1, message(1, b"scalars")))
    simple = message(1, b"rate") + b"\x15" + struct.pack("<f", 2.0)
    double = message(1, b"x") + message(8, b"\x08\x02" + message(6, struct.pack("<d", 0.1)))
    return [record(scalar) * 2 + record(simple, double), record(simple) + b"\x10\0\0"]


@pytest.fixture
def in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        prefix="airflow_tf-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as folder:
        yield Path(folder)


@pytest.mark.parametrize("target", ["index", "entry", "snappy", "state", "events"])
def test_whatever_the_fuzzer_finds_is_told_as_our_error(
    target: str, tmp_path: Path, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire.google_crc32c, "extend", lambda _crc, _data: 0)  # as the program does
    corpus, found = tmp_path / "corpus", tmp_path / "found"
    for folder in (corpus, found, tmp_path / "files"):
        folder.mkdir()
    for number, data in enumerate(seeds(target, tmp_path / "files")):
        (corpus / f"seed-{number}").write_bytes(data)
    limits = [f"-max_total_time={SECONDS}", "-timeout=10", "-rss_limit_mb=1024", "-max_len=16384"]
    command = [
        sys.executable,
        str(PROGRAM),
        target,
        str(tmp_path / "files"),
        str(corpus),
        f"-artifact_prefix={found}/",
        *limits,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 200, check=False)
    inputs = {path.name: path.read_bytes()[:500] for path in found.iterdir()}
    assert done.returncode == 0, f"{inputs}\n{done.stderr[-6000:]}"
    assert len(list(corpus.iterdir())) > len(seeds(target, tmp_path / "files"))  # coverage guided it somewhere
