"""Elements of a checkpoint's tensors as numbers, and how to average them.

Apart from :mod:`.dtypes`, so that whoever only checks a checkpoint (every supervisor) does without numpy's 12 MB.
numpy has no bfloat16: it is the upper half of a float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


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
