"""Framing of TFRecord files: length, its checksum, data, their checksum.

The format is described in TensorFlow's ``tensorflow/core/lib/io/record_writer.h``.
"""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c

from airflow_tf.core.checkpoint.wire import mask

LENGTH_AND_CRC = struct.Struct("<QI")
CRC = struct.Struct("<I")
FRAME_BYTES = LENGTH_AND_CRC.size
"""Bytes before a record's data."""

_LENGTH_BYTES = 8


def data_length(frame: bytes) -> int | None:
    """Return how many bytes of data follow a record's first :data:`FRAME_BYTES`; None if these are none."""
    if len(frame) < FRAME_BYTES:
        return None
    length, crc = LENGTH_AND_CRC.unpack_from(frame)
    return int(length) if crc == mask(google_crc32c.value(frame[:_LENGTH_BYTES])) else None


def next_record(content: Any, at: int) -> int | None:  # noqa: ANN401 -- bytes or a mapped file
    """Return where the record after the one at ``at`` begins; None if none is there."""
    length = data_length(content[at : at + FRAME_BYTES])
    return None if length is None else at + FRAME_BYTES + length + CRC.size
