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

import google_crc32c

from airflow_tf.core.checkpoint.wire import MASK_DELTA, UINT32, MalformedError, extend_crc, get_varint, mask

MAX_RECORD_BYTES = 1 << 30

_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_CHUNK_BYTES = 1 << 22
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DT_FLOAT, _DT_DOUBLE = 1, 2
_SCALAR_PLUGINS = (b"", b"scalars")
_WALL_TIME, _STEP = b"\x09", b"\x10"  # keys of an event's fields
_KEY_BYTES = _HEADER.size + len(_WALL_TIME)
_MOST_SHAPES = 16  # of records of one length: a file of the worst kind must not be compared with all it has had

_Field = tuple[int, int, int, int]
"""Number, wire type, start (of a varint: its value) and end."""


Scalar = tuple[float, int, str, float]
"""Wall time, step, tag and value. Not of a class of its own: a hundred thousand of these are work for the collector of
garbage, which takes as long again as the reading."""


class _Place(NamedTuple):
    """A scalar and where its number lies, in bytes from the beginning of what was decoded; of no size: it is implied.

    ``step_end`` is where an event of wall time, step and a summary, in this order and nothing else, has its summary.
    """

    scalar: Scalar
    start: int
    size: int
    step_end: int


_Shape = tuple[struct.Struct, int, dict[tuple[bytes, bytes], str]]
"""Layout and size of a record, and the tag that is told by what lies around the number."""
_Shapes = dict[bytes, list[_Shape]]
"""By the first bytes of a record: its length, with a checksum that was found right, and the key of the wall time."""


def read_scalars(path: Path, offset: int = 0) -> tuple[list[Scalar], int]:
    """Return the scalars behind ``offset`` and the offset behind the last whole record, to go on from.

    :raises MalformedError: if a checksum is wrong; what lies behind cannot be found again.
    """
    found: list[Scalar] = []
    shapes: _Shapes = {}
    with path.open("rb") as file:
        file.seek(offset)
        data = b""
        while chunk := file.read(max(_CHUNK_BYTES, _missing(data))):
            data += chunk
            position = _read_alike(data, 0, shapes, found)
            while (end := _record_end(data, position)) is not None:
                body = position + _HEADER.size
                places = list(_scalars(data, body, end - _CRC.size))
                found.extend(place.scalar for place in places)
                if len(places) == 1:
                    _learn(data, position, end, places[0], shapes)
                position = _read_alike(data, end, shapes, found)
            data = data[position:]
            offset += position
    return found, offset


def _read_alike(data: bytes, position: int, shapes: _Shapes, found: list[Scalar]) -> int:
    """Append the scalars of records that are like one that was decoded before, up to the first that is not.

    This is where the time goes: what one record costs is a few calls of functions written in C, and none of ours.

    :return: the position of that record, which may be damaged, or not whole yet.
    """
    extend, append = google_crc32c.extend, found.append
    step_field = b""
    step: int | None = 0
    while True:
        for layout, size, tags in shapes.get(data[position : position + _KEY_BYTES], ()):
            end = position + size
            if end > len(data):
                return position
            _, wall_time, field, head, value, tail, stored = layout.unpack_from(data, position)
            tag = tags.get((head, tail))
            if tag is None:
                continue
            if field != step_field:
                step_field, step = field, _only_step(field)
            if step is None:
                return position
            crc = extend(0, data[position + 12 : end - 4])
            if (((crc >> 15) | (crc << 17)) + MASK_DELTA) & UINT32 != stored:  # as mask() does
                return position
            append((wall_time, step, tag, value))
            position = end
            break
        else:
            return position


def _learn(data: bytes, start: int, end: int, place: _Place, shapes: _Shapes) -> None:
    """Remember the shape of a record that consists of wall time, step and summary with one scalar.

    Records that are the same between step and number, and behind it, decode to the same but for these three.
    """
    body, last = start + _HEADER.size, end - _CRC.size
    step_start = body + _DOUBLE.size + len(_WALL_TIME)
    number_end = place.start + place.size
    known = shapes.setdefault(data[start : start + _KEY_BYTES], [])
    if (
        data[body : body + 1] != _WALL_TIME
        or not place.size
        or place.step_end < step_start
        or len(known) >= _MOST_SHAPES
    ):
        return
    number = "f" if place.size == _FLOAT.size else "d"
    step, head, tail = place.step_end - step_start, place.start - place.step_end, last - number_end
    layout = struct.Struct(f"<{_KEY_BYTES}sd{step}s{head}s{number}{tail}sI")
    tags = next((tags for other, _, tags in known if other.format == layout.format), None)
    if tags is None:
        tags = {}
        known.append((layout, end - start, tags))
    tags[data[place.step_end : place.start], data[number_end:last]] = place.scalar[2]


def _only_step(field: bytes) -> int | None:
    """Decode what should be the step of an event and nothing else."""
    if not field.startswith(_STEP):
        return None
    try:
        value, end = get_varint(field, 1, len(field))
    except MalformedError:
        return None
    return _signed(value) if end == len(field) else None


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


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


def _scalars(data: bytes, start: int, end: int) -> Iterator[_Place]:
    """Decode an ``Event``: wall_time 1, step 2, summary 5, whose values are field 1."""
    wall_time, step, numbers = 0.0, 0, []
    summary = (0, 0)
    step_end = -1
    for number, kind, first, last in _fields(data, start, end):
        numbers.append(number)
        if number == 1 and kind == _FIXED64:
            wall_time = _DOUBLE.unpack_from(data, first)[0]
        elif number == 2 and kind == _VARINT:  # noqa: PLR2004 (field numbers, as said above)
            step, step_end = _signed(first), last
        elif number == 5 and kind == _BYTES:  # noqa: PLR2004
            summary = (first, last)
    step_end = step_end if numbers == [1, 2, 5] else -1
    for number, kind, first, last in _fields(data, *summary):
        if number == 1 and kind == _BYTES:
            tag, value, place = _value(data, first, last)
            if value is not None:
                yield _Place((wall_time, step, tag, value), *place, step_end)


def _value(data: bytes, start: int, end: int) -> tuple[str, float | None, tuple[int, int]]:
    """Decode a ``Summary.Value``: tag 1, simple_value 2, tensor 8, metadata 9. Tell start and size of the number."""
    tag, plugin = "", b""
    value: float | None = None
    place = (0, 0)
    for number, kind, first, last in _fields(data, start, end):
        if kind == _BYTES and number == 1:
            tag = data[first:last].decode(errors="replace")
        elif kind == _FIXED32 and number == 2:  # noqa: PLR2004 (field numbers, as said above)
            value, place = _FLOAT.unpack_from(data, first)[0], (first, _FLOAT.size)
        elif kind == _BYTES and number == 8:  # noqa: PLR2004
            value, place = _tensor(data, first, last)
        elif kind == _BYTES and number == 9:  # noqa: PLR2004
            plugin = _plugin(data, first, last)
    return tag, value if plugin in _SCALAR_PLUGINS else None, place


def _tensor(data: bytes, start: int, end: int) -> tuple[float | None, tuple[int, int]]:
    """Decode a scalar ``TensorProto``: dtype 1, shape 2, tensor_content 4, float_val 5, double_val 6."""
    dtype, place = 0, (start, 0)
    for number, kind, first, last in _fields(data, start, end):
        if number == 1 and kind == _VARINT:
            dtype = first
        elif number == 2 and kind == _BYTES and last > first:  # noqa: PLR2004 (a shape with dimensions)
            return None, place
        elif number in {4, 5, 6} and kind != _VARINT:
            place = (first, last - first)
    number_format = {_DT_FLOAT: _FLOAT, _DT_DOUBLE: _DOUBLE}.get(dtype)
    if number_format is None or (place[1] and place[1] != number_format.size):
        return None, place
    return float(number_format.unpack_from(data, place[0])[0]) if place[1] else 0.0, place


def _plugin(data: bytes, start: int, end: int) -> bytes:
    """Decode the plugin's name of a ``SummaryMetadata``: field 1 of field 1."""
    for number, kind, first, last in _fields(data, start, end):
        if number == 1 and kind == _BYTES:
            return next((data[a:b] for n, _, a, b in _fields(data, first, last) if n == 1), b"")
    return b""
