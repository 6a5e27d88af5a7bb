"""What is done with each tensor of an average, and when checkpoints are too unlike to have one."""

from __future__ import annotations

import numpy as np

from airflow_tf.core.checkpoint.bundle import BundleReader, key_text
from airflow_tf.core.checkpoint.completeness import prefix_step
from airflow_tf.core.checkpoint.dtypes import DTYPES, Kind
from airflow_tf.core.checkpoint.graph import optimizer_tensors
from airflow_tf.core.checkpoint.numeric import has_mean
from airflow_tf.core.errors import CheckpointError

OBJECT_GRAPH = b"_CHECKPOINTABLE_OBJECT_GRAPH"
MEAN = "mean"
DROPPED = "dropped (optimizer)"
MAX_DIFFERENCES = 20

_VALUE = b"/.ATTRIBUTES/VARIABLE_VALUE"
_STEP_NAMES = (b"global_step", b"step", b"iterations", b"_iterations", b"iter", b"save_counter")  # best first
_INTEGER_STEPS = {3: "<i4", 9: "<i8", 23: "<u8"}
_V1_SLOTS = {
    name + number
    for name in (b"Adam", b"Momentum", b"RMSProp", b"Adagrad", b"Adadelta", b"Ftrl")
    for number in (b"", b"_1", b"_2")
}
_V1_POWERS = {b"beta1_power", b"beta2_power"}


def rules_for(reader: BundleReader, *, drop_optimizer: bool) -> dict[bytes, str]:
    """Return for each tensor, in order of the keys, ``mean``, why it is ``copied``, or that it is ``dropped``."""
    dropped = optimizer_keys(reader) if drop_optimizer else frozenset()
    return {key: DROPPED if key in dropped else _rule(key, reader) for key in sorted(reader.entries)}


def optimizer_keys(reader: BundleReader) -> frozenset[bytes]:
    """Return the tensors that only an optimizer has: by the object graph, in v1 by the names of slots."""
    if OBJECT_GRAPH in reader.entries:
        (graph,) = reader.strings(OBJECT_GRAPH)
        return optimizer_tensors(graph).intersection(reader.entries)
    return frozenset(key for key in reader.entries if _is_v1_slot(key, reader))


def _is_v1_slot(key: bytes, reader: BundleReader) -> bool:
    owner, _, last = key.rpartition(b"/")
    return key in _V1_POWERS or (owner in reader.entries and last in _V1_SLOTS)


def differences(first: BundleReader, other: BundleReader) -> list[str]:
    """Return a line for each tensor that only one has, or whose type, shape or slices differ."""
    found = []
    for key in sorted(first.entries.keys() | other.entries.keys()):
        left, right = describe(first, key), describe(other, key)
        if left != right:
            found.append(f"{key_text(key)}: {left} in {first.prefix}, {right} in {other.prefix}")
    return found


def require_same_structure(readers: list[BundleReader]) -> None:
    """Refuse checkpoints of different models.

    :raises CheckpointError: with a list of what differs.
    """
    refuse_differences([line for other in readers[1:] for line in differences(readers[0], other)])


def refuse_differences(found: list[str]) -> None:
    """Raise what :func:`differences` found, if it did.

    :raises CheckpointError: naming up to :data:`MAX_DIFFERENCES` of them.
    """
    if found:
        shown = "".join(f"\n- {line}" for line in found[:MAX_DIFFERENCES])
        rest = len(found) - MAX_DIFFERENCES
        more = f"\n- and {rest} more" if rest > 0 else ""
        count = "1 difference" if len(found) == 1 else f"{len(found)} differences"
        raise CheckpointError(
            "checkpoints differ in structure",
            f"{count}{shown}{more}\n",
            "Average only replicas of the same model and optimizer.",
        )


def _rule(key: bytes, reader: BundleReader) -> str:
    entry = reader.entries[key]
    if _is_table_column(key, reader):
        return "copied (hash table)"
    if entry.slices:
        return "copied (list of slices)"
    if has_mean(entry.dtype):
        return MEAN
    return "copied (object graph)" if key == OBJECT_GRAPH else f"copied ({entry.kind})"


def _is_table_column(key: bytes, reader: BundleReader) -> bool:
    """Tell whether a tensor is a column of a mutable hash table, saved as ``<table>-keys`` and ``<table>-values``."""
    for ours, other in ((b"-keys", b"-values"), (b"-values", b"-keys")):
        if key.endswith(ours):
            return key.removesuffix(ours) + other in reader.entries
    return False


def step_of(reader: BundleReader) -> int | None:
    """Return how far a checkpoint's training came: its step variable, else its save counter, else its name."""
    for wanted in _STEP_NAMES:
        found = [
            int(np.frombuffer(reader.read(key), _INTEGER_STEPS[entry.dtype])[0])
            for key, entry in reader.entries.items()
            if entry.dtype in _INTEGER_STEPS and entry.shape == () and _last_name(key) == wanted
        ]
        if found:
            return max(found)
    return prefix_step(reader.prefix)


def _last_name(key: bytes) -> bytes:
    return key.removesuffix(_VALUE).rpartition(b"/")[2]


def describe(reader: BundleReader, key: bytes) -> str:
    """Describe a tensor's type and shape; the length of a table or of an iterator's state is its own affair."""
    entry = reader.entries.get(key)
    if entry is None:
        return "missing"
    any_shape = entry.kind is Kind.VARIANT or _is_table_column(key, reader)
    shape = "of any shape" if any_shape else str(list(entry.shape))
    sliced = f" in {len(entry.slices)} slices" if entry.slices else ""
    return f"{DTYPES[entry.dtype].name} {shape}{sliced}"
