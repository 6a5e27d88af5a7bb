"""Average checkpoints into one, in constant memory.

Floating point and complex tensors get the mean. Everything else has none: step counters, random generator state,
strings, iterators, the object graph, and both columns of a hash table (their order differs between replicas) are
taken from one replica, the one that trained longest.
"""

from __future__ import annotations

import errno
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from airflow_tf.core.checkpoint.bundle import BundleReader, BundleWriter, encode_string, key_text
from airflow_tf.core.checkpoint.completeness import write_state
from airflow_tf.core.checkpoint.graph import without_tensors
from airflow_tf.core.checkpoint.numeric import Array, decode, encode, mean
from airflow_tf.core.checkpoint.rules import DROPPED, MEAN, OBJECT_GRAPH, require_same_structure, rules_for, step_of
from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.units import format_bytes

Progress = Callable[[int, int], None]
Begin = Callable[[Path, int], None]
NotFinite = Literal["refuse", "leave_out"]
Optimizer = Literal["average", "drop"]

_CANNOT = "checkpoints cannot be averaged"


@dataclass(frozen=True, slots=True)
class AverageReport:
    """What an average is made of.

    ``rules`` says for each tensor ``mean``, from which kind it was ``copied``, or that it was ``dropped``; the copies
    come from input number ``source``, the one with the largest step. ``weights`` add up to 1. ``steps`` has None where
    an input has no step. ``data`` is size in bytes and CRC32C of the data file. ``left_out`` maps inputs that were
    given but not used to the reason.
    """

    destination: str
    inputs: tuple[str, ...]
    weights: tuple[float, ...]
    steps: tuple[int | None, ...]
    source: int
    rules: dict[str, str]
    averaged: int
    copied: int
    dropped: int
    read_bytes: int
    written_bytes: int
    data: dict[str, int]
    notes: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return asdict(self)


def average(
    prefixes: Sequence[str],
    destination: str,
    *,
    weights: Sequence[float] = (),
    not_finite: NotFinite = "refuse",
    optimizer: Optimizer = "average",
    on_progress: Progress | None = None,
    on_begin: Begin | None = None,
) -> AverageReport:
    """Write the average of checkpoints to the prefix ``destination`` and name it in the folder's state file.

    Every checksum of what is read is checked. The destination appears whole or not at all, is on disk on return, and
    the same inputs give the same bytes.

    :param weights: one number greater than 0 for each input; without them all count the same.
    :param not_finite: ``leave_out`` averages the others where an input has NaN or infinity, and says so.
    :param optimizer: ``drop`` leaves optimizer state out: the result is for inference or for a fresh optimizer.
    :param on_progress: called with bytes read so far and in all.
    :param on_begin: called with the file that the data is being written into, and the size in bytes that it will have,
        where that is known; it gets its name at the end, or is deleted. Again where the average is begun anew.
    :raises CheckpointError: if an input is damaged, the inputs differ in structure, a tensor has NaN or infinity, or
        the destination's disk will not hold the average, of which no part is left there.
    """
    chosen = dict(zip(prefixes, _shares(prefixes, weights, destination), strict=True))
    left_out: dict[str, str] = {}
    while True:
        try:
            shares = list(chosen.values()) if weights else []
            report = _write(
                list(chosen), shares, destination, on_progress, on_begin, drop_optimizer=optimizer == "drop"
            )
        except _NotFiniteError as found:
            if not_finite == "refuse" or len(found.bad) in {0, len(chosen)}:
                raise found.error() from found
            left_out |= dict.fromkeys(found.bad, found.what)
        else:
            return replace(report, left_out=left_out)
        kept = {prefix: share for prefix, share in chosen.items() if prefix not in left_out}
        chosen = {prefix: share / math.fsum(kept.values()) for prefix, share in kept.items()}


def _write(
    prefixes: Sequence[str],
    shares: Sequence[float],
    destination: str,
    on_progress: Progress | None,
    on_begin: Begin | None,
    *,
    drop_optimizer: bool,
) -> AverageReport:
    with ExitStack() as stack:
        readers = [stack.enter_context(BundleReader(prefix)) for prefix in prefixes]
        work = _Average(readers, list(shares), on_progress, drop_optimizer=drop_optimizer)
        try:
            with BundleWriter(destination) as writer:
                if _free_bytes(destination) < work.needed_bytes:
                    raise _not_written(destination, _room(destination, work.needed_bytes))
                if on_begin is not None and work.written_bytes is not None:
                    on_begin(writer.data_file, work.written_bytes)
                work.write(writer)
                written, data = writer.commit(), writer.data
            write_state(destination)
        except OSError as error:  # what was written is gone again: what is free now is what another try would find
            why = error.strerror or str(error)
            room = f" ({_room(destination, work.needed_bytes)})" if error.errno == errno.ENOSPC else ""
            raise _not_written(destination, f"{why}{room}") from error
        return work.report(destination, written, data)


def _not_written(destination: str, why: str) -> CheckpointError:
    return CheckpointError(f"{destination} cannot be written", why, "Make room, or write elsewhere.")


def _room(destination: str, needed_bytes: int) -> str:
    return f"{format_bytes(needed_bytes)} are needed, {format_bytes(_free_bytes(destination))} are free"


def _free_bytes(destination: str) -> int:
    folder = next(folder for folder in Path(destination).resolve().parents if folder.is_dir())
    return shutil.disk_usage(folder).free


def _shares(prefixes: Sequence[str], weights: Sequence[float], destination: str) -> list[float]:
    """Check what was given and return each input's part of the whole."""
    if not prefixes:
        raise CheckpointError("there is no checkpoint to average")
    inputs = [str(Path(prefix).resolve()) for prefix in prefixes]
    if len({*inputs, str(Path(destination).resolve())}) <= len(inputs):
        why = "an input is given twice, or is the destination"
        raise CheckpointError(f"cannot average into {destination}", why, "Use distinct prefixes.")
    given = list(weights) or [1.0] * len(inputs)
    if len(given) != len(inputs) or not all(math.isfinite(weight) and weight > 0 for weight in given):
        why = f"there are {len(inputs)} inputs and the weights are {', '.join(f'{weight:g}' for weight in given)}"
        raise CheckpointError(_CANNOT, why, "Give each input one weight greater than 0.")
    whole = math.fsum(given)
    return [weight / whole for weight in given]


class _NotFiniteError(Exception):
    """A tensor has NaN or infinite values in the inputs ``bad``, or overflows although none has (``bad`` is empty)."""

    def __init__(self, key: bytes, bad: list[str]) -> None:
        super().__init__(key, bad)
        self.bad = bad
        self.what = f"{key_text(key)!r} has NaN or infinite values"
        self.overflow = f"the sum of {key_text(key)!r} overflows"

    def error(self) -> CheckpointError:
        if not self.bad:
            return CheckpointError(_CANNOT, self.overflow)
        todo = "Leave that replica out, or look why it diverged."
        return CheckpointError(_CANNOT, f"{self.what} in {', '.join(self.bad)}", todo)


class _Average:
    """One averaging: the open inputs, the rule for each tensor, and the progress."""

    def __init__(
        self, readers: list[BundleReader], shares: list[float], on_progress: Progress | None, *, drop_optimizer: bool
    ) -> None:
        self._readers = readers
        self._shares = shares
        self._on_progress = on_progress
        require_same_structure(readers)
        self._steps = tuple(step_of(reader) for reader in readers)
        self._source = max(range(len(readers)), key=lambda number: (self._steps[number] or 0, -number))
        self._rules = rules_for(readers[0], drop_optimizer=drop_optimizer)
        self._total = sum(
            reader.entries[key].size
            for number, reader in enumerate(readers)
            for key, rule in self._rules.items()
            if rule == MEAN or (rule != DROPPED and number == self._source)
        )
        self._done = 0

    @property
    def needed_bytes(self) -> int:
        """Size of the data, or a little more where the object graph is made anew."""
        entries = self._readers[self._source].entries
        return sum(entries[key].size for key, rule in self._rules.items() if rule != DROPPED)

    @property
    def written_bytes(self) -> int | None:
        """Size of the data; None where the object graph is made anew."""
        is_new = DROPPED in self._rules.values() and self._rules.get(OBJECT_GRAPH, DROPPED) != DROPPED
        return None if is_new else self.needed_bytes

    def write(self, writer: BundleWriter) -> None:
        source = self._readers[self._source]
        dropped = [key for key, rule in self._rules.items() if rule == DROPPED]
        for key, rule in self._rules.items():
            entry = source.entries[key]
            if rule == MEAN:
                writer.add(key, entry, self._mean(key, entry.dtype))
            elif key == OBJECT_GRAPH and dropped:
                (graph,) = source.strings(key)
                self._count_bytes(entry.size)
                data, crc32c = encode_string(without_tensors(graph, dropped))
                writer.add(key, entry, [data], crc32c)
            elif rule != DROPPED:
                writer.add(key, entry, self._count(source.chunks(key)), entry.crc32c)

    def report(self, destination: str, written_bytes: int, data: dict[str, int]) -> AverageReport:
        rules = list(self._rules.values())
        averaged, dropped = rules.count(MEAN), rules.count(DROPPED)
        count = len(self._readers)
        return AverageReport(
            destination=destination,
            inputs=tuple(reader.prefix for reader in self._readers),
            weights=tuple(self._shares) or (1 / count,) * count,
            steps=self._steps,
            source=self._source,
            rules={key_text(key): rule for key, rule in self._rules.items()},
            averaged=averaged,
            copied=len(rules) - averaged - dropped,
            dropped=dropped,
            read_bytes=self._done,
            written_bytes=written_bytes,
            data=data,
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
            self._count_bytes(len(chunk) * times)

    def _count_bytes(self, count: int) -> None:
        self._done += count
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)

    def _mean(self, key: bytes, dtype: int) -> Iterator[bytes]:
        return self._count(self._mean_chunks(key, dtype), len(self._readers))

    def _mean_chunks(self, key: bytes, dtype: int) -> Iterator[bytes]:
        for chunks in zip(*(reader.chunks(key) for reader in self._readers), strict=True):
            parts = [decode(dtype, chunk) for chunk in chunks]
            result = mean(dtype, parts, self._shares)
            if not np.isfinite(result).all():
                raise _NotFiniteError(key, self._bad(parts))
            yield encode(dtype, result)

    def _bad(self, parts: list[Array]) -> list[str]:
        return [reader.prefix for reader, part in zip(self._readers, parts, strict=True) if not np.isfinite(part).all()]
