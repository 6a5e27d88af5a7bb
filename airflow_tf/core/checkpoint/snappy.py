"""Decompress a block that was compressed with snappy (google/snappy, format_description.txt).

TensorFlow leaves its index uncompressed, but its reader takes such blocks, and so does this one.
"""

from __future__ import annotations

from airflow_tf.core.checkpoint.wire import MalformedError, get_varint

_LITERAL, _COPY_1, _COPY_2 = 0, 1, 2  # the fourth tag has four bytes of offset
_LONGEST_SHORT_LITERAL = 60


def decompress(data: bytes) -> bytes:
    """Return the block.

    The result is at most 32 times as long as ``data``, whatever it claims: a copy of 64 bytes takes two.

    :raises MalformedError: if it is not such a block.
    """
    length, position = get_varint(data, 0, len(data))
    out = bytearray()
    while position < len(data):
        tag = data[position]
        position += 1
        if tag & 3 == _LITERAL:
            size, position = _literal_size(data, tag >> 2, position)
            if position + size > len(data):
                raise MalformedError("a compressed block is cut off")
            out += data[position : position + size]
            position += size
        else:
            size, offset, position = _copy(data, tag, position)
            if not 0 < offset <= len(out):
                raise MalformedError("a compressed block points before its beginning")
            start = len(out) - offset
            piece = bytes(out[start : start + size])
            out += (piece * (size // offset + 1))[:size]  # a copy may reach into what it writes
        if len(out) > length:
            break
    if len(out) != length:
        raise MalformedError("a compressed block has not the length that it says")
    return bytes(out)


def _literal_size(data: bytes, size: int, position: int) -> tuple[int, int]:
    if size < _LONGEST_SHORT_LITERAL:
        return size + 1, position
    count = size - _LONGEST_SHORT_LITERAL + 1
    return _number(data, position, count) + 1, position + count


def _copy(data: bytes, tag: int, position: int) -> tuple[int, int, int]:
    if tag & 3 == _COPY_1:
        return (tag >> 2 & 7) + 4, (tag >> 5) << 8 | _number(data, position, 1), position + 1
    count = 2 if tag & 3 == _COPY_2 else 4
    return (tag >> 2) + 1, _number(data, position, count), position + count


def _number(data: bytes, position: int, count: int) -> int:
    if position + count > len(data):
        raise MalformedError("a compressed block is cut off")
    return int.from_bytes(data[position : position + count], "little")
