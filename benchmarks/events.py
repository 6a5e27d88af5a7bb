"""Read the scalars of an event file, beside tensorboard's EventAccumulator: the whole file, and what it has gained.

The file holds series of TF2 (a tensor) and of TensorFlow 1 (a simple value). Both sides must find the same values. The
reference runs where tensorboard is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Row, arguments, pairs, report

from airflow_tf.core.event_files import read_scalars

SERIES = ("loss", "accuracy", "rate", "norm")
NAME = "tensorboard EventAccumulator"
Values = dict[str, list[tuple[int, float]]]


def main() -> None:
    """Measure and report."""
    options = arguments(__doc__ or "")
    count, repeats = (20_000, 2) if options.quick else (100_000, 5)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "events.out.tfevents.1.host")
        write_events(path, 0, count)
        case, gained = f"{count:,} scalars", f"{count // 100:,} more"
        reference = accumulator(path) if importlib.util.find_spec("tensorboard") else None
        offset = path.stat().st_size
        if reference is not None and read(path) != reference():
            raise SystemExit("the two readers found different values")
        mine, theirs = _measure(repeats, lambda: read(path), reference)
        rows = [Row(case, "seconds of CPU", mine, theirs, NAME, "ratio <= 0.2")]
        write_events(path, count, count // 100)
        again = accumulator(path) if reference is not None else None
        mine, theirs = _measure(repeats, lambda: read_scalars(path, offset), again)
        rows.append(Row(gained, "seconds of CPU", mine, theirs, f"{NAME}, anew", "ratio <= 0.05"))
    report(rows, options.json)


def _measure(
    count: int, ours: Callable[[], object], reference: Callable[[], object] | None
) -> tuple[float, float | None]:
    mine, theirs = pairs(count, lambda: {"s": _cpu(ours)}, lambda: {"s": _cpu(reference) if reference else 0.0})
    return mine["s"], theirs["s"] if reference is not None else None


def _cpu(work: Callable[[], object]) -> float:
    """Return the CPU seconds of this process, its threads included."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write_events(path: Path, first: int, count: int) -> None:
    """Append ``count`` scalars, in turn of each series, as TensorFlow writes them."""
    tf: Any = importlib.import_module("tensorflow")
    event = importlib.import_module("tensorflow.core.util.event_pb2").Event
    part = path.with_name("part")
    with tf.io.TFRecordWriter(str(part)) as writer:
        for number in range(first, first + count):
            found = event(wall_time=time.time(), step=number // len(SERIES))
            value = found.summary.value.add(tag=SERIES[number % len(SERIES)])
            if number % len(SERIES) < len(SERIES) // 2:
                value.tensor.CopyFrom(tf.make_tensor_proto(1.0 / (number + 1), tf.float32))
                value.metadata.plugin_data.plugin_name = "scalars"
            else:
                value.simple_value = 1.0 / (number + 1)
            writer.write(found.SerializeToString())
    with path.open("ab") as file:
        file.write(part.read_bytes())
    part.unlink()


def read(path: Path) -> Values:
    """Return step and value of each series by our reader."""
    found: Values = {}
    for _, step, tag, value in read_scalars(path)[0]:
        found.setdefault(tag, []).append((step, value))
    return found


def accumulator(path: Path) -> Callable[[], Values]:
    """Return the same by tensorboard's accumulator, told to keep all values."""
    module: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    util: Any = importlib.import_module("tensorboard.util.tensor_util")

    def read_all() -> Values:
        events = module.EventAccumulator(str(path), size_guidance={module.SCALARS: 0, module.TENSORS: 0})
        events.Reload()
        tags = events.Tags()
        found = {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in tags["scalars"]}
        for tag in tags["tensors"]:
            values = events.Tensors(tag)
            found[tag] = [(each.step, float(util.make_ndarray(each.tensor_proto))) for each in values]
        return found

    return read_all


if __name__ == "__main__":
    main()
