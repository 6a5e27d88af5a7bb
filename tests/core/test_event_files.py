"""Event files: the values that TensorFlow wrote, each once, and damage that is said."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from airflow_tf.core.checkpoint.wire import MalformedError, extend_crc, mask, put_varint
from airflow_tf.core.event_files import read_scalars
from airflow_tf.core.launch import METRICS_FILE
from airflow_tf.supervisor.events import collect_events


def message(number: int, data: bytes) -> bytes:
    return put_varint(number << 3 | 2) + put_varint(len(data)) + data


def value(tag: str, *, simple: float | None = None, tensor: bytes = b"", plugin: str = "") -> bytes:
    data = message(1, tag.encode())
    if simple is not None:
        data += put_varint(2 << 3 | 5) + struct.pack("<f", simple)
    if tensor:
        data += message(8, tensor)
    return data + message(9, message(1, message(1, plugin.encode())))


def record(step: int, *values: bytes) -> bytes:
    event = b"\x09" + struct.pack("<d", 1.5) + b"\x10" + put_varint(step % (1 << 64))
    event += message(5, b"".join(message(1, each) for each in values))
    length = struct.pack("<Q", len(event))
    return b"".join(part + struct.pack("<I", mask(extend_crc(0, part))) for part in (length, event))


FLOAT = b"\x08\x01" + message(2, b"") + message(4, struct.pack("<f", 0.5))
DOUBLE = b"\x08\x02" + message(6, struct.pack("<d", 0.1))
PACKED = b"\x08\x01" + message(5, struct.pack("<f", 2.0))
VECTOR = b"\x08\x01" + message(2, message(2, b"\x08\x02")) + message(4, struct.pack("<ff", 1, 2))
TEXT = b"\x08\x07" + message(8, b"words")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (value("a", simple=0.25), [(1.5, 7, "a", 0.25)]),
        (value("a", tensor=FLOAT, plugin="scalars"), [(1.5, 7, "a", 0.5)]),
        (value("a", tensor=DOUBLE), [(1.5, 7, "a", 0.1)]),
        (value("a", tensor=PACKED), [(1.5, 7, "a", 2.0)]),
        (value("a", tensor=b"\x08\x01"), [(1.5, 7, "a", 0.0)]),
        (value("a", tensor=VECTOR), []),
        (value("a", tensor=TEXT, plugin="text"), []),
        (value("a", tensor=FLOAT, plugin="histograms"), []),
    ],
    ids=["simple", "float", "double", "packed", "zero", "vector", "text", "another plugin"],
)
def test_only_scalars_are_read(tmp_path: Path, data: bytes, expected: list[object]) -> None:
    path = tmp_path / "events"
    path.write_bytes(record(7, data))
    assert read_scalars(path)[0] == expected


def test_a_growing_file_is_followed_wherever_it_is_cut(tmp_path: Path) -> None:
    path, whole = tmp_path / "events", b"".join(record(step, value("a", simple=step)) for step in (-1, 0, 1))
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        first, offset = read_scalars(path)
        path.write_bytes(whole)
        second, end = read_scalars(path, offset)
        assert [each.step for each in first + second] == [-1, 0, 1]
        assert end == len(whole)


@pytest.mark.parametrize("position", [0, 8, 14, -1], ids=["length", "its checksum", "data", "its checksum too"])
def test_damage_is_an_error(tmp_path: Path, position: int) -> None:
    path, data = tmp_path / "events", bytearray(record(1, value("a", simple=1)))
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(MalformedError, match="checksum"):
        read_scalars(path)


def test_events_are_added_to_the_metrics_once_and_a_damaged_file_hides_no_other(tmp_path: Path) -> None:
    run, checkpoints = tmp_path / "run", tmp_path / "checkpoints"
    for folder in (run / "logs" / "train", checkpoints):
        folder.mkdir(parents=True)
    (run / "logs/train/a.tfevents.1").write_bytes(record(3, value("loss", simple=0.5)))
    (checkpoints / "b.tfevents.2").write_bytes(b"x" * 40)
    (checkpoints / "c.tfevents.3").write_bytes(record(4, value("rate", simple=2)))
    for _ in range(2):
        collect_events(run, checkpoints)
    lines = [json.loads(line) for line in (run / METRICS_FILE).read_text().splitlines()]
    assert sorted(lines, key=lambda line: line["step"]) == [
        {"step": 3, "time": 1.5, "logs/train/loss": 0.5},
        {"step": 4, "time": 1.5, "rate": 2.0},
    ]
    with (checkpoints / "c.tfevents.3").open("ab") as file:
        file.write(record(5, value("rate", simple=3)))
    collect_events(run, checkpoints)
    assert len((run / METRICS_FILE).read_text().splitlines()) == 3
