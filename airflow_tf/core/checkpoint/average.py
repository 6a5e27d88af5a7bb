"""Average the checkpoints of replicas into one, in constant memory.

Floating point and complex tensors get the mean. Everything else has none: step counters, random generator state,
strings, iterators, the object graph, and both columns of a hash table (their order differs between replicas) are
taken from one replica, the one that trained longest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from airflow_tf.core.checkpoint.bundle import BundleReader, BundleWriter, key_text
from airflow_tf.core.checkpoint.completeness import prefix_step, write_state
from airflow_tf.core.checkpoint.dtypes import DTYPES, Kind
from airflow_tf.core.checkpoint.numeric import Array, decode, encode, mean
from airflow_tf.core.errors import CheckpointError

OBJECT_GRAPH = b"_CHECKPOINTABLE_OBJECT_GRAPH"
MEAN = "mean"
MAX_DIFFERENCES = 20

_VALUE = b"/.ATTRIBUTES/VARIABLE_VALUE"
_STEP_NAMES = (b"global_step", b"step", b"iterations", b"_iterations", b"iter", b"save_counter")  # best first
_INTEGER_STEPS = {3: "<i4", 9: "<i8", 23: "<u8"}

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class AverageReport:
    """What an average is made of.

    ``rules`` says for each tensor ``mean``, or from which kind it was ``copied``; the copies come from input number
    ``source``, the one with the largest step. ``steps`` has None where an input has no step.
    """

    destination: str
    inputs: tuple[str, ...]
    steps: tuple[int | None, ...]
    source: int
    rules: dict[str, str]
    averaged: int
    copied: int
    read_bytes: int
    written_bytes: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return asdict(self)


def average(prefixes: Sequence[str], destination: str, *, on_progress: Progress | None = None) -> AverageReport:
    """Write the average of checkpoints to the prefix ``destination`` and name it in the folder's state file.

    Every checksum of what is read is checked. The destination appears whole or not at all, is on disk on return, and
    the same inputs give the same bytes.

    :param on_progress: called with bytes read so far and in all.
    :raises CheckpointError: if an input is damaged, the inputs differ in structure, or a tensor has NaN or infinity.
    """
    if not prefixes:
        raise CheckpointError("there is no checkpoint to average")
    inputs = [str(Path(prefix).resolve()) for prefix in prefixes]
    if len({*inputs, str(Path(destination).resolve())}) <= len(inputs):
        raise CheckpointError(
            f"cannot average into {destination}",
            "an input is given twice, or is the destination",
            "Use distinct prefixes.",
        )
    with ExitStack() as stack:
        readers = [stack.enter_context(BundleReader(prefix)) for prefix in prefixes]
        work = _Average(readers, on_progress)
        writer = stack.enter_context(BundleWriter(destination))
        work.write(writer)
        written = writer.commit()
        write_state(destination)
        return work.report(destination, written)


class _Average:
    """One averaging: the open inputs, the rule for each tensor, and the progress."""

    def __init__(self, readers: list[BundleReader], on_progress: Progress | None) -> None:
        self._readers = readers
        self._on_progress = on_progress
        _require_same_structure(readers)
        self._steps = tuple(_step(reader) for reader in readers)
        self._source = max(range(len(readers)), key=lambda number: (self._steps[number] or 0, -number))
        self._rules = {key: _rule(key, readers[0]) for key in sorted(readers[0].entries)}
        self._total = sum(
            reader.entries[key].size
            for number, reader in enumerate(readers)
            for key, rule in self._rules.items()
            if rule == MEAN or number == self._source
        )
        self._done = 0

    def write(self, writer: BundleWriter) -> None:
        source = self._readers[self._source]
        for key, rule in self._rules.items():
            entry = source.entries[key]
            if rule == MEAN:
                writer.add(key, entry, self._mean(key, entry.dtype))
            else:
                writer.add(key, entry, self._count(source.chunks(key)), entry.crc32c)

    def report(self, destination: str, written_bytes: int) -> AverageReport:
        rules = list(self._rules.values())
        return AverageReport(
            destination=destination,
            inputs=tuple(reader.prefix for reader in self._readers),
            steps=self._steps,
            source=self._source,
            rules={key_text(key): rule for key, rule in self._rules.items()},
            averaged=rules.count(MEAN),
            copied=len(rules) - rules.count(MEAN),
            read_bytes=self._done,
            written_bytes=written_bytes,
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        if len(set(self._steps)) > 1:
            yield f"the inputs are at different steps: {', '.join(str(step) for step in self._steps)}"
        graphs = {self._graph_crc(reader) for reader in self._readers}
        if len(graphs) > 1:
            yield f"the object graphs differ in detail; that of input {self._source} is kept"

    @staticmethod
    def _graph_crc(reader: BundleReader) -> int | None:
        entry = reader.entries.get(OBJECT_GRAPH)
        return entry.crc32c if entry else None

    def _count(self, chunks: Iterator[bytes], times: int = 1) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            self._done += len(chunk) * times
            if self._on_progress is not None:
                self._on_progress(self._done, self._total)

    def _mean(self, key: bytes, dtype: int) -> Iterator[bytes]:
        return self._count(self._mean_chunks(key, dtype), len(self._readers))

    def _mean_chunks(self, key: bytes, dtype: int) -> Iterator[bytes]:
        for chunks in zip(*(reader.chunks(key) for reader in self._readers), strict=True):
            parts = [decode(dtype, chunk) for chunk in chunks]
            result = mean(dtype, parts)
            if not np.isfinite(result).all():
                raise self._not_finite(key, parts)
            yield encode(dtype, result)

    def _not_finite(self, key: bytes, parts: list[Array]) -> CheckpointError:
        bad = [reader.prefix for reader, part in zip(self._readers, parts, strict=True) if not np.isfinite(part).all()]
        if not bad:
            return CheckpointError("checkpoints cannot be averaged", f"the sum of {key_text(key)!r} overflows")
        why = f"{key_text(key)!r} has NaN or infinite values in {', '.join(bad)}"
        return CheckpointError(
            "checkpoints cannot be averaged", why, "Leave that replica out, or look why it diverged."
        )


def _rule(key: bytes, reader: BundleReader) -> str:
    entry = reader.entries[key]
    if _is_table_column(key, reader):
        return "copied (hash table)"
    if entry.slices:
        return "copied (list of slices)"
    if entry.kind is Kind.SMALL_FLOAT:
        name = DTYPES[entry.dtype].name
        raise CheckpointError("checkpoints cannot be averaged", f"{key_text(key)!r} is {name}, which has no exact mean")
    if entry.kind in {Kind.FLOAT, Kind.COMPLEX}:
        return MEAN
    return "copied (object graph)" if key == OBJECT_GRAPH else f"copied ({entry.kind})"


def _is_table_column(key: bytes, reader: BundleReader) -> bool:
    """Tell whether a tensor is a column of a mutable hash table, saved as ``<table>-keys`` and ``<table>-values``."""
    for ours, other in ((b"-keys", b"-values"), (b"-values", b"-keys")):
        if key.endswith(ours):
            return key.removesuffix(ours) + other in reader.entries
    return False


def _step(reader: BundleReader) -> int | None:
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


def _require_same_structure(readers: list[BundleReader]) -> None:
    first = readers[0]
    differences = []
    for other in readers[1:]:
        for key in sorted(first.entries.keys() | other.entries.keys()):
            left, right = _structure(first, key), _structure(other, key)
            if left != right:
                differences.append(f"\n- {key_text(key)}: {left} in {first.prefix}, {right} in {other.prefix}")
    if differences:
        shown = "".join(differences[:MAX_DIFFERENCES])
        rest = len(differences) - MAX_DIFFERENCES
        more = f"\n- and {rest} more" if rest > 0 else ""
        count = "1 difference" if len(differences) == 1 else f"{len(differences)} differences"
        raise CheckpointError(
            "checkpoints differ in structure",
            f"{count}{shown}{more}\n",
            "Average only replicas of the same model and optimizer.",
        )


def _structure(reader: BundleReader, key: bytes) -> str:
    """Describe a tensor's type and shape; the length of a table or of an iterator's state is its own affair."""
    entry = reader.entries.get(key)
    if entry is None:
        return "missing"
    any_shape = entry.kind is Kind.VARIANT or _is_table_column(key, reader)
    shape = "of any shape" if any_shape else str(list(entry.shape))
    sliced = f" in {len(entry.slices)} slices" if entry.slices else ""
    return f"{DTYPES[entry.dtype].name} {shape}{sliced}"
