"""Event files: the values that TensorFlow wrote, each once, and damage that is said."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_tf.core import event_files
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


def framed(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return b"".join(part + struct.pack("<I", mask(extend_crc(0, part))) for part in (length, event))


def record(step: int, *values: bytes) -> bytes:
    event = b"\x09" + struct.pack("<d", 1.5) + b"\x10" + put_varint(step % (1 << 64))
    return framed(event + message(5, b"".join(message(1, each) for each in values)))


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


PARTS = [
    b"\x09" + struct.pack("<d", 1.5),
    b"\x09" + struct.pack("<d", 2.5),
    b"\x10\x07",
    b"\x10\x08",
    b"\x10\x85\x01",
    b"\x10\x85\x00",  # not the shortest form of 5
    b"\x90\x00\x07",  # nor is this, of the key
    b"\x0a\x0812345678",
    message(5, message(1, value("a", simple=1))),
    message(5, message(1, value("b", simple=2))),
    message(5, message(1, value("a", tensor=FLOAT))),
    message(5, message(1, value("a", tensor=DOUBLE)) + message(1, value("a", tensor=VECTOR))),
    message(5, message(1, value("a", simple=1)) + message(1, value("a", simple=2))),
    message(5, message(1, value("a", simple=1) + value("b", tensor=DOUBLE))),
    b"\x18\x01",
]
ORDERLY = st.tuples(*(st.sampled_from(PARTS[first:last]) for first, last in ((0, 2), (2, 7), (8, 14)))).map(list)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(ORDERLY | st.lists(st.sampled_from(PARTS), max_size=5), max_size=12))
def test_a_record_like_one_before_is_decoded_as_if_it_were_the_first(tmp_path: Path, events: list[list[bytes]]) -> None:
    path, expected = tmp_path / "events", []
    for event in events:
        path.write_bytes(framed(b"".join(event)))
        expected += read_scalars(path)[0]
    path.write_bytes(b"".join(framed(b"".join(event)) for event in events))
    assert read_scalars(path)[0] == expected


def test_most_records_are_read_by_the_shape_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, generally = [], event_files._scalars
    monkeypatch.setattr(event_files, "_scalars", lambda *args: decoded.append(args) or generally(*args))
    path = tmp_path / "events"
    series = [value("loss", tensor=FLOAT), value("rate", simple=1), value("x", tensor=DOUBLE)]
    path.write_bytes(b"".join(record(step, each) for step in range(1, 1000) for each in series))
    assert len(read_scalars(path)[0]) == 2997
    assert len(decoded) == 6  # each series, for steps of one byte and of two


def test_a_growing_file_is_followed_wherever_it_is_cut(tmp_path: Path) -> None:
    path, whole = tmp_path / "events", b"".join(record(step, value("a", simple=step)) for step in (-1, 0, 1))
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        first, offset = read_scalars(path)
        path.write_bytes(whole)
        second, end = read_scalars(path, offset)
        assert [step for _, step, _, _ in first + second] == [-1, 0, 1]
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


def test_what_an_attempt_before_wrote_beside_the_checkpoints_is_not_reported_again(tmp_path: Path) -> None:
    checkpoints, first, second = (tmp_path / name for name in ("checkpoints", "attempt-1", "attempt-2"))
    for folder in (checkpoints, first, second):
        folder.mkdir()
    (checkpoints / "a.tfevents.1").write_bytes(record(9, value("loss", simple=1)))
    collect_events(first, checkpoints)
    collect_events(second, checkpoints)
    assert not (second / METRICS_FILE).exists()
    (checkpoints / "b.tfevents.2").write_bytes(record(5, value("loss", simple=2)))
    for _ in range(2):
        collect_events(second, checkpoints)
    (line,) = (second / METRICS_FILE).read_text().splitlines()
    assert json.loads(line) == {"step": 5, "time": 1.5, "loss": 2.0}
