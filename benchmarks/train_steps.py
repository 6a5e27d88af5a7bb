"""A training in small, for ``checkpoints.py``: ``train_steps.py FOLDER STEPS SAVE_EVERY MEGABYTES``.

A step multiplies matrices; every so many steps the state is saved into FOLDER, of which the last two stay. Prints the
seconds of the steps alone: a save is the program's own affair, and costs the same whoever copies it.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from airflow_tf.core.checkpoint import BundleWriter, Entry

_SIZE = 1024


def save(folder: Path, step: int, state: bytes) -> None:
    """Write a checkpoint, and remove the one before the last."""
    with BundleWriter(str(folder / f"ckpt-{step}")) as writer:
        writer.add(b"state", Entry(1, (len(state) // 4,), 0, 0, 0, 0), [state])
        writer.commit()
    for old in sorted(folder.glob("ckpt-*.index"), key=lambda path: int(path.stem.rpartition("-")[2]))[:-2]:
        for path in folder.glob(f"{old.stem}.*"):
            path.unlink()


def main() -> None:
    """Train, and print the median and the sum of the steps' seconds."""
    folder, (steps, every, megabytes) = Path(sys.argv[1]), map(int, sys.argv[2:])
    make = np.random.default_rng(0)
    weights, data = make.random((_SIZE, _SIZE), np.float32), make.random((_SIZE, _SIZE), np.float32)
    state, seconds = make.bytes(megabytes * 10**6), []
    for step in range(1, steps + 1):
        started = time.monotonic()
        weights = np.tanh(weights @ data) * np.float32(0.1)
        seconds.append(time.monotonic() - started)
        if step % every == 0:
            save(folder, step, state)
    print(json.dumps({"seconds": sum(seconds) / steps, "median": statistics.median(seconds)}))


if __name__ == "__main__":
    main()
