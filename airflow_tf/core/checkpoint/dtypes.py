"""Element types of a checkpoint and their size on disk, by their numbers in tensorflow/core/framework/types.proto."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
