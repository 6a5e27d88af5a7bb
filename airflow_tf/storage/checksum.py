"""Checksums that HDFS gives of a whole file, compared with a local copy.

By default HDFS answers with an MD5 of the MD5 of each block's CRCs (``MD5-of-XMD5-of-YCRC32C``: X chunks a block, Y
bytes a chunk), with ``dfs.checksum.combine.mode=COMPOSITE_CRC`` with the CRC of all bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import google_crc32c

_MD5 = re.compile(r"^MD5-of-\d+MD5-of-(\d+)CRC32(C?)$")
_LEAST_BUFFER_BYTES = 32
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileChecksum:
    """What HDFS says of a file: name of the algorithm, its value, and the size of the file's blocks."""

    algorithm: str
    value: bytes
    block_bytes: int


def agrees(known: FileChecksum, descriptor: int, size: int, crc32c: int, tick: Callable[[], None]) -> bool:
    """Tell whether the open local file of ``size`` bytes and CRC32C ``crc32c`` has the checksum ``known``.

    An algorithm that is not known here cannot disagree.
    """
    if known.algorithm == "COMPOSITE-CRC32C":
        return int.from_bytes(known.value[:4], "big") == crc32c
    match = _MD5.match(known.algorithm)
    if match is None or not size:
        return True
    chunk_crc = google_crc32c.value if match.group(2) else zlib.crc32
    return _md5_of_md5s(descriptor, size, known.block_bytes, int(match.group(1)), chunk_crc, tick) == known.value[-16:]


def _md5_of_md5s(
    descriptor: int,
    size: int,
    block_bytes: int,
    chunk_bytes: int,
    chunk_crc: Callable[[bytes], int],
    tick: Callable[[], None],
) -> bytes:
    blocks = bytearray()
    step = max(chunk_bytes, _READ_BYTES // chunk_bytes * chunk_bytes)
    for start in range(0, size, block_bytes):
        digest, end = hashlib.md5(usedforsecurity=False), min(size, start + block_bytes)
        for offset in range(start, end, step):
            data = os.pread(descriptor, min(step, end - offset), offset)
            pieces = (data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes))
            digest.update(b"".join(chunk_crc(piece).to_bytes(4, "big") for piece in pieces))
            tick()
        blocks += digest.digest()
    # HDFS digests its whole buffer, which grows from 32 bytes by doubling and ends in zeros.
    buffer = _LEAST_BUFFER_BYTES
    while buffer < len(blocks):
        buffer *= 2
    return hashlib.md5(bytes(blocks).ljust(buffer, b"\0"), usedforsecurity=False).digest()
