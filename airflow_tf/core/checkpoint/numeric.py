"""Elements of a checkpoint's tensors as numbers, and how to average them.

Apart from :mod:`.dtypes`, so that whoever only checks a checkpoint (every supervisor) does without numpy's 12 MB.
numpy has no bfloat16: it is the upper half of a float32. Floats of 8 and 4 bits need ml_dtypes, which TensorFlow
brings along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_tf.core.checkpoint.dtypes import DTYPES, Kind
from airflow_tf.core.errors import CheckpointError

Array = npt.NDArray[Any]
Codec = tuple[Callable[[bytes], Array], Callable[[Array], bytes], str]
"""Bytes to numbers, numbers to bytes, and the type in which they are summed."""


def _from_bfloat16(data: bytes) -> Array:
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")


def _to_bfloat16(values: Array) -> bytes:
    """Round to nearest, ties to even; the values are finite."""
    bits = values.astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def _plain(stored: str, wide: str) -> Codec:
    return (lambda data: np.frombuffer(data, stored)), (lambda values: values.astype(stored).tobytes()), wide


_BLOCK = 1 << 14
_EXACT = {1, 2, 8, 18}  # a mean of finite numbers of these is finite in the type itself

_CODECS = {
    1: _plain("<f4", "<f8"),
    2: _plain("<f8", "<f8"),
    19: _plain("<f2", "<f4"),
    14: (_from_bfloat16, _to_bfloat16, "<f4"),
    8: _plain("<c8", "<c16"),
    18: _plain("<c16", "<c16"),
}


@cache
def _small(dtype: int) -> Codec:
    name = DTYPES[dtype].name
    try:
        import ml_dtypes  # noqa: PLC0415 (only where such a tensor is met)
    except ImportError as error:
        why = f"a tensor is {name}, and ml_dtypes is not installed"
        raise CheckpointError("checkpoints cannot be averaged", why, "Install it; TensorFlow brings it.") from error
    stored = getattr(ml_dtypes, name)
    return (
        (lambda data: np.frombuffer(data, stored).astype("<f4")),
        (lambda values: bytes(values.astype(stored).tobytes())),
        "<f4",
    )


def _codec(dtype: int) -> Codec:
    return _CODECS.get(dtype) or _small(dtype)


def has_mean(dtype: int) -> bool:
    """Tell whether elements of a type are real or complex numbers."""
    return DTYPES[dtype].kind in {Kind.FLOAT, Kind.COMPLEX, Kind.SMALL_FLOAT}


def decode(dtype: int, data: bytes) -> Array:
    """Return the elements of a type that has a mean; bfloat16 and smaller floats come as float32."""
    return _codec(dtype)[0](data)


def mean(dtype: int, parts: Sequence[Array], weights: Sequence[float] = ()) -> Array:
    """Return the element-wise mean of flat arrays, summed in a wider type than the stored one (float64 stays float64).

    It goes block by block: the wide sums then stay in the processor's cache, which doubles the speed.

    :param weights: one per part, adding up to 1; without them all count the same.
    """
    wide = np.dtype(_codec(dtype)[2])
    result = np.empty(parts[0].shape, parts[0].dtype if dtype in _EXACT else wide)
    total = np.empty(min(_BLOCK, result.size), wide)
    with np.errstate(all="ignore"):  # the caller judges the result
        for start in range(0, result.size, _BLOCK):
            blocks = [part[start : start + _BLOCK] for part in parts]
            part = total[: blocks[0].size]
            _sum(blocks, weights, part)
            result[start : start + _BLOCK] = part
    return result


def _sum(blocks: Sequence[Array], weights: Sequence[float], total: Array) -> None:
    if weights:
        total[:] = 0
        for block, weight in zip(blocks, weights, strict=True):
            total += block * total.dtype.type(weight)
        return
    total[:] = blocks[0]
    for block in blocks[1:]:
        total += block
    total /= len(blocks)


def encode(dtype: int, values: Array) -> bytes:
    """Return the bytes to store for :func:`mean`'s result."""
    return _codec(dtype)[1](values)
