"""The index file of a checkpoint: a sorted string table of small blocks, each with a checksum.

Format: LevelDB's table_format.md. TensorFlow writes it without compression and with an empty metaindex.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from airflow_tf.core.checkpoint.snappy import decompress
from airflow_tf.core.checkpoint.wire import MalformedError, extend_crc, get_varint, mask, put_varint

MAGIC = 0xDB4775248B80FB57
_FOOTER_SIZE = 48
_TRAILER_SIZE = 5  # type byte and checksum
_BLOCK_SIZE = 4096
_SNAPPY = 1


def read_table(data: bytes) -> dict[bytes, bytes]:
    """Return the table's keys and values in order.

    :raises MalformedError: for anything that is not such a table.
    """
    if len(data) < _FOOTER_SIZE or struct.unpack_from("<Q", data, len(data) - 8)[0] != MAGIC:
        raise MalformedError("it does not end like a table; it is cut off or something else")
    footer = len(data) - _FOOTER_SIZE
    position = footer
    handle = [0, 0, 0, 0]  # offset and size of the metaindex, offset and size of the index
    for field in range(4):
        handle[field], position = get_varint(data, position, len(data) - 8)
    _block(data, handle[0], handle[1], footer)
    table: dict[bytes, bytes] = {}
    last, free = b"", 0
    for _, value in _entries(_block(data, handle[2], handle[3], footer)):
        offset, after = get_varint(value, 0, len(value))
        size, _ = get_varint(value, after, len(value))
        if offset < free:  # else a small file could ask for the same long block again and again
            raise MalformedError("its blocks are not in order")
        free = offset + size
        for key, item in _entries(_block(data, offset, size, footer)):
            if table and key <= last:
                raise MalformedError("its keys are not in order")
            table[key] = item
            last = key
    return table


def _block(data: bytes, offset: int, size: int, end: int) -> bytes:
    if offset + size + _TRAILER_SIZE > end:
        raise MalformedError("a block lies outside the file")
    block = data[offset : offset + size]
    kind = data[offset + size]
    (stored,) = struct.unpack_from("<I", data, offset + size + 1)
    if mask(extend_crc(extend_crc(0, block), bytes([kind]))) != stored:
        raise MalformedError("the checksum of a block does not match")
    if kind == _SNAPPY:
        return decompress(block)
    if kind != 0:
        raise MalformedError(f"a block has the unknown compression {kind}")
    return block


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(block) < 4:  # noqa: PLR2004 - the count of restarts
        raise MalformedError("a block is too short")
    end = len(block) - 4 - 4 * struct.unpack_from("<I", block, len(block) - 4)[0]
    if end < 0:
        raise MalformedError("a block has more restarts than bytes")
    position, key = 0, b""
    while position < end:
        shared, position = get_varint(block, position, end)
        unshared, position = get_varint(block, position, end)
        length, position = get_varint(block, position, end)
        if shared > len(key) or position + unshared + length > end:
            raise MalformedError("an entry reaches beyond its block")
        key = key[:shared] + block[position : position + unshared]
        position += unshared
        yield key, block[position : position + length]
        position += length


def write_table(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the table of ``items``, which come in ascending order of their keys."""
    out = bytearray()
    index: list[tuple[bytes, bytes]] = []
    pending: list[tuple[bytes, bytes]] = []
    size = 0

    def put(block: bytes) -> bytes:
        handle = put_varint(len(out)) + put_varint(len(block))
        out.extend(block + b"\0" + struct.pack("<I", mask(extend_crc(0, block + b"\0"))))
        return handle

    for key, value in items:
        pending.append((key, value))
        size += len(key) + len(value)
        if size >= _BLOCK_SIZE:
            index.append((key, put(_build_block(pending))))
            pending, size = [], 0
    if pending:
        index.append((pending[-1][0], put(_build_block(pending))))
    metaindex = put(_build_block([]))
    footer = metaindex + put(_build_block(index))
    out.extend(footer.ljust(_FOOTER_SIZE - 8, b"\0") + struct.pack("<Q", MAGIC))
    return bytes(out)


def _build_block(items: list[tuple[bytes, bytes]]) -> bytes:
    """Encode entries without prefix compression, so that each one is a restart."""
    body = bytearray()
    restarts = []
    for key, value in items:
        restarts.append(len(body))
        body += put_varint(0) + put_varint(len(key)) + put_varint(len(value)) + key + value
    restarts = restarts or [0]
    return bytes(body) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
