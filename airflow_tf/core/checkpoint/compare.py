"""What differs between two checkpoints, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from airflow_tf.core.checkpoint.bundle import BundleReader, key_text
from airflow_tf.core.checkpoint.numeric import decode, has_mean
from airflow_tf.core.checkpoint.rules import describe


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor that differs: its form in both, and for numbers of the same form the largest distance."""

    tensor: str
    left: str
    right: str
    largest: float | None = None


def differences_in_values(left: BundleReader, right: BundleReader) -> Iterator[Difference]:
    """Yield what differs, in order of the names. Tensors are compared in pieces, so memory stays small.

    :raises CheckpointError: if one is damaged.
    """
    for key in sorted(left.entries.keys() | right.entries.keys()):
        forms = describe(left, key), describe(right, key)
        if forms[0] != forms[1]:
            yield Difference(key_text(key), *forms)
            continue
        equal, largest = _compare(left, right, key)
        if not equal:
            yield Difference(key_text(key), *forms, largest)


def _compare(left: BundleReader, right: BundleReader, key: bytes) -> tuple[bool, float | None]:
    dtype = left.entries[key].dtype
    if left.entries[key].size != right.entries[key].size:
        return False, None
    if not has_mean(dtype):
        return left.read(key) == right.read(key), None
    equal, largest = True, 0.0
    for one, other in zip(left.chunks(key), right.chunks(key), strict=True):
        if one != other:
            equal = False
            with np.errstate(all="ignore"):  # NaN is a distance as well
                distance = np.abs(decode(dtype, one) - decode(dtype, other))
            largest = float(np.maximum(largest, distance.max()))
    return equal, largest
