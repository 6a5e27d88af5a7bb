"""Whether the weights of replicas have anything in common: the weaker check where no checkpoint of step 0 is left.

Independent random tensors of n elements have a cosine of about 1/sqrt(n); replicas of one start keep one near 1 for
long. Where all large tensors are as good as independent, an average is no model, whatever the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from airflow_tf.core.checkpoint.bundle import BundleReader
from airflow_tf.core.checkpoint.numeric import Array, decode, has_mean
from airflow_tf.core.checkpoint.rules import optimizer_keys

_LEAST_ELEMENTS = 1000
_MOST_TENSORS = 8
_SAME = 0.1
"""Three times the cosine that chance gives to independent tensors of the least size."""


def are_unrelated(prefixes: Sequence[str]) -> bool:
    """Tell whether some replica's largest tensors are all unrelated to the first one's; False where none is large.

    Of each tensor the first half megabyte is looked at; the optimizer's do not count.

    :raises CheckpointError: if a checkpoint cannot be read.
    """
    with ExitStack() as stack:
        first, *others = [stack.enter_context(BundleReader(prefix)) for prefix in prefixes]
        keys = _largest(first)
        return bool(keys) and any(all(_cosine(first, other, key) < _SAME for key in keys) for other in others)


def _largest(reader: BundleReader) -> list[bytes]:
    optimizer = optimizer_keys(reader)
    large = [
        (-entry.elements, key)
        for key, entry in reader.entries.items()
        if entry.elements >= _LEAST_ELEMENTS and has_mean(entry.dtype) and not entry.slices and key not in optimizer
    ]
    return [key for _, key in sorted(large)[:_MOST_TENSORS]]


def _cosine(first: BundleReader, other: BundleReader, key: bytes) -> float:
    """Return the absolute cosine of a tensor in two checkpoints; 1 where one lacks it or it has no direction."""
    if key not in other.entries:
        return 1.0
    one, two = _beginning(first, key), _beginning(other, key)
    norms = float(np.linalg.norm(one) * np.linalg.norm(two)) if one.shape == two.shape else 0.0
    if not norms or not np.isfinite(norms):
        return 1.0
    return float(abs(np.vdot(one, two)) / norms)


def _beginning(reader: BundleReader, key: bytes) -> Array:
    values = decode(reader.entries[key].dtype, next(iter(reader.chunks(key))))
    return values.astype("<c16" if np.iscomplexobj(values) else "<f8")
