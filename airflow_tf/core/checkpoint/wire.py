"""Encodings shared by the index table and the tensor data: varints and masked CRC32C.

Sources: tensorflow/core/lib/core/coding.h, tsl/lib/hash/crc32c.h.
"""

from __future__ import annotations

import google_crc32c

MASK_DELTA = 0xA282EAD8
UINT32 = 0xFFFFFFFF
_VARINT_MAX_BYTES = 10


class MalformedError(Exception):
    """Bytes that do not follow the format; the reader adds which file they came from."""


def extend_crc(crc: int, data: bytes) -> int:
    """Return the CRC32C of what ``crc`` covers followed by ``data``."""
    return int(google_crc32c.extend(crc, data))


def mask(crc: int) -> int:
    """Return the form in which a CRC is stored, so that a CRC of data holding CRCs stays strong."""
    return (((crc >> 15) | (crc << 17)) + MASK_DELTA) & UINT32


def put_varint(value: int) -> bytes:
    """Encode a non-negative integer, seven bits per byte, lowest first."""
    out = bytearray()
    while value > 127:  # noqa: PLR2004 - seven bits
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def get_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Decode a varint and return it with the position behind it.

    :raises MalformedError: if it does not end before ``end`` or has more than 64 bits.
    """
    value = 0
    for index in range(_VARINT_MAX_BYTES):
        if position + index >= end:
            break
        byte = data[position + index]
        value |= (byte & 127) << (7 * index)
        if byte < 128:  # noqa: PLR2004 - the eighth bit means: more follows
            return value, position + index + 1
    raise MalformedError("a number does not end")
