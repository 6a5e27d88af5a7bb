"""Scalars of TensorFlow's event files, read without TensorFlow and only as far as was not read before.

A file is a sequence of records ``length (8) crc (4) data crc (4)``, each an ``Event``; of its fields the wall time,
the step and the summary's scalars are decoded. Sources: tensorflow/core/lib/io/record_writer.h,
core/util/event.proto, core/framework/{summary,tensor}.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from airflow_tf.core.checkpoint.wire import MalformedError, extend_crc, get_varint, mask

MAX_RECORD_BYTES = 1 << 30

_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_CHUNK_BYTES = 1 << 22
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DT_FLOAT, _DT_DOUBLE = 1, 2
_SCALAR_PLUGINS = (b"", b"scalars")

_Field = tuple[int, int, int, int]
"""Number, wire type, start (of a varint: its value) and end."""


class Scalar(NamedTuple):
    """One value of one series."""

    wall_time: float
    step: int
    tag: str
    value: float


def read_scalars(path: Path, offset: int = 0) -> tuple[list[Scalar], int]:
    """Return the scalars behind ``offset`` and the offset behind the last whole record, to go on from.

    :raises MalformedError: if a checksum is wrong; what lies behind cannot be found again.
    """
    found: list[Scalar] = []
    with path.open("rb") as file:
        file.seek(offset)
        data = b""
        while chunk := file.read(max(_CHUNK_BYTES, _missing(data))):
            data += chunk
            position = 0
            while (end := _record_end(data, position)) is not None:
                found.extend(_scalars(data, position + _HEADER.size, end - _CRC.size))
                position = end
            data = data[position:]
            offset += position
    return found, offset


def _missing(data: bytes) -> int:
    """Return how many bytes the record that ``data`` begins still lacks, as far as it is known."""
    if len(data) < _HEADER.size:
        return 0
    return int(_HEADER.unpack_from(data)[0]) + _HEADER.size + _CRC.size - len(data)


def _record_end(data: bytes, start: int) -> int | None:
    """Check the record at ``start`` and return where it ends, None if it is not whole yet."""
    body = start + _HEADER.size
    if len(data) < body:
        return None
    length, crc = _HEADER.unpack_from(data, start)
    if mask(extend_crc(0, data[start : start + 8])) != crc or length > MAX_RECORD_BYTES:
        raise MalformedError("the length of a record has a wrong checksum")
    end = body + int(length) + _CRC.size
    if len(data) < end:
        return None
    if mask(extend_crc(0, data[body : end - _CRC.size])) != _CRC.unpack_from(data, end - _CRC.size)[0]:
        raise MalformedError("a record has a wrong checksum")
    return end


def _fields(data: bytes, start: int, end: int) -> Iterator[_Field]:
    position = start
    while position < end:
        key, position = get_varint(data, position, end)
        kind = key & 7
        if kind == _VARINT:
            value, position = get_varint(data, position, end)
            yield key >> 3, kind, value, position
            continue
        if kind == _BYTES:
            size, position = get_varint(data, position, end)
        elif kind in {_FIXED64, _FIXED32}:
            size = 8 if kind == _FIXED64 else 4
        else:
            raise MalformedError(f"wire type {kind} is unknown")
        if position + size > end:
            raise MalformedError("a field is longer than its message")
        yield key >> 3, kind, position, position + size
        position += size


def _scalars(data: bytes, start: int, end: int) -> Iterator[Scalar]:
    """Decode an ``Event``: wall_time 1, step 2, summary 5, whose values are field 1."""
    wall_time, step = 0.0, 0
    summary = (0, 0)
    for number, kind, first, last in _fields(data, start, end):
        if number == 1 and kind == _FIXED64:
            wall_time = _DOUBLE.unpack_from(data, first)[0]
        elif number == 2 and kind == _VARINT:  # noqa: PLR2004 (field numbers, as said above)
            step = first - (1 << 64) if first >> 63 else first
        elif number == 5 and kind == _BYTES:  # noqa: PLR2004
            summary = (first, last)
    for number, kind, first, last in _fields(data, *summary):
        if number == 1 and kind == _BYTES:
            tag, value = _value(data, first, last)
            if value is not None:
                yield Scalar(wall_time, step, tag, value)


def _value(data: bytes, start: int, end: int) -> tuple[str, float | None]:
    """Decode a ``Summary.Value``: tag 1, simple_value 2, tensor 8, metadata 9."""
    tag, value, plugin = "", None, b""
    for number, kind, first, last in _fields(data, start, end):
        if kind == _BYTES and number == 1:
            tag = data[first:last].decode(errors="replace")
        elif kind == _FIXED32 and number == 2:  # noqa: PLR2004 (field numbers, as said above)
            value = _FLOAT.unpack_from(data, first)[0]
        elif kind == _BYTES and number == 8:  # noqa: PLR2004
            value = _tensor(data, first, last)
        elif kind == _BYTES and number == 9:  # noqa: PLR2004
            plugin = _plugin(data, first, last)
    return tag, value if plugin in _SCALAR_PLUGINS else None


def _tensor(data: bytes, start: int, end: int) -> float | None:
    """Decode a scalar ``TensorProto``: dtype 1, shape 2, tensor_content 4, float_val 5, double_val 6."""
    dtype, content = 0, b""
    for number, kind, first, last in _fields(data, start, end):
        if number == 1 and kind == _VARINT:
            dtype = first
        elif number == 2 and kind == _BYTES and last > first:  # noqa: PLR2004 (a shape with dimensions)
            return None
        elif number in {4, 5, 6} and kind != _VARINT:
            content = data[first:last]
    number_format = {_DT_FLOAT: _FLOAT, _DT_DOUBLE: _DOUBLE}.get(dtype)
    if number_format is None or (content and len(content) != number_format.size):
        return None
    return float(number_format.unpack(content)[0]) if content else 0.0


def _plugin(data: bytes, start: int, end: int) -> bytes:
    """Decode the plugin's name of a ``SummaryMetadata``: field 1 of field 1."""
    for number, kind, first, last in _fields(data, start, end):
        if number == 1 and kind == _BYTES:
            return next((data[a:b] for n, _, a, b in _fields(data, first, last) if n == 1), b"")
    return b""
