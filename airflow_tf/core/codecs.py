"""Compression told by content, not by name: what TensorFlow reads, and what it does not."""

from __future__ import annotations

from airflow_tf.core.errors import InputError

HEAD_BYTES = 16
"""So much of a file's beginning is looked at."""

_FOREIGN = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
    b"PK\x03\x04": "zip",
    b"PAR1": "Parquet",
    b"ORC": "ORC",
    b"Obj\x01": "Avro",
}
_ZLIB_LEVELS = {0x01, 0x9C, 0xDA}
_PRINTABLE_ZLIB_LEVEL = 0x5E  # also the text "x^"


def compression_of(head: bytes, name: str) -> str:
    """Return TensorFlow's name of the compression (empty, ``GZIP``, ``ZLIB``) of a file that begins with ``head``.

    :raises InputError: if it is one that TensorFlow cannot read.
    """
    if head[:2] == b"\x1f\x8b":
        return "GZIP"
    if head[:1] == b"\x78" and len(head) > 1:
        named = head[1] == _PRINTABLE_ZLIB_LEVEL and name.endswith((".zz", ".zlib"))
        if named or head[1] in _ZLIB_LEVELS:
            return "ZLIB"
    for magic, codec in _FOREIGN.items():
        if head.startswith(magic):
            raise InputError(
                f"{name} is {codec}", "TensorFlow reads plain, gzip and zlib files", "Write it in one of these."
            )
    return ""
