"""Element types of a checkpoint: their size on disk and how to average them.

Numbers are those of tensorflow/core/framework/types.proto. numpy has no bfloat16: it is the upper half of a float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Kind(StrEnum):
    """What a type's elements are; only ``FLOAT`` and ``COMPLEX`` have a mean."""

    FLOAT = "float"
    COMPLEX = "complex"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    STRING = "string"
    VARIANT = "variant"
    SMALL_FLOAT = "small float"


@dataclass(frozen=True, slots=True)
class DType:
    """One element type; ``size`` is bytes per element on disk, None where elements differ in length."""

    number: int
    name: str
    kind: Kind
    size: int | None


def _table() -> dict[int, DType]:
    rows: list[tuple[Kind, int | None, dict[int, str]]] = [
        (Kind.FLOAT, 2, {14: "bfloat16", 19: "half"}),
        (Kind.FLOAT, 4, {1: "float"}),
        (Kind.FLOAT, 8, {2: "double"}),
        (Kind.COMPLEX, 8, {8: "complex64"}),
        (Kind.COMPLEX, 16, {18: "complex128"}),
        (Kind.INTEGER, 1, {4: "uint8", 6: "int8", 11: "qint8", 12: "quint8", 29: "int4", 30: "uint4"}),
        (Kind.INTEGER, 1, {31: "int2", 32: "uint2"}),
        (Kind.INTEGER, 2, {5: "int16", 17: "uint16", 15: "qint16", 16: "quint16"}),
        (Kind.INTEGER, 4, {3: "int32", 22: "uint32", 13: "qint32"}),
        (Kind.INTEGER, 8, {9: "int64", 23: "uint64"}),
        (Kind.BOOLEAN, 1, {10: "bool"}),
        (Kind.STRING, None, {7: "string"}),
        (Kind.VARIANT, None, {21: "variant"}),
        (Kind.SMALL_FLOAT, 1, {24: "float8_e5m2", 25: "float8_e4m3fn", 26: "float8_e4m3fnuz"}),
        (Kind.SMALL_FLOAT, 1, {27: "float8_e4m3b11fnuz", 28: "float8_e5m2fnuz", 33: "float4_e2m1fn"}),
    ]
    return {number: DType(number, name, kind, size) for kind, size, names in rows for number, name in names.items()}


DTYPES = _table()


def _from_bfloat16(data: bytes) -> Array:
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")


def _to_bfloat16(values: Array) -> bytes:
    """Round to nearest, ties to even; the values are finite."""
    bits = values.astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def _plain(stored: str, wide: str) -> tuple[Callable[[bytes], Array], Callable[[Array], bytes], str]:
    return (lambda data: np.frombuffer(data, stored)), (lambda values: values.astype(stored).tobytes()), wide


_CODECS = {
    1: _plain("<f4", "<f8"),
    2: _plain("<f8", "<f8"),
    19: _plain("<f2", "<f4"),
    14: (_from_bfloat16, _to_bfloat16, "<f4"),
    8: _plain("<c8", "<c16"),
    18: _plain("<c16", "<c16"),
}


def decode(dtype: int, data: bytes) -> Array:
    """Return the elements of a type that has a mean; bfloat16 comes as float32."""
    return _CODECS[dtype][0](data)


def mean(dtype: int, parts: list[Array]) -> Array:
    """Return the element-wise mean, summed in a wider type than the stored one (float64 stays float64)."""
    total = parts[0].astype(_CODECS[dtype][2])
    with np.errstate(all="ignore"):  # the caller judges the result
        for part in parts[1:]:
            total += part
        total /= len(parts)
    return total


def encode(dtype: int, values: Array) -> bytes:
    """Return the bytes to store for :func:`mean`'s result."""
    return _CODECS[dtype][1](values)
