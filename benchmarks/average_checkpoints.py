"""One averaging in a process of its own, for ``checkpoints.py``: ``ours|tensorflow DESTINATION PREFIX…``.

Prints JSON: seconds and CPU seconds from after the imports to files on disk, and the anonymous memory that it added.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def ours(prefixes: Sequence[str], destination: str) -> Callable[[], None]:
    """Average as the product does: every input's and the output's checksums, the output flushed."""
    from airflow_tf.core.checkpoint.average import average  # noqa: PLC0415

    return lambda: (average(prefixes, destination), None)[1]


def tensorflow(prefixes: Sequence[str], destination: str) -> Callable[[], None]:
    """Average as one would by hand: all tensors loaded, one SaveV2, flushed."""
    import numpy as np  # noqa: PLC0415
    import tensorflow as tf

    def run() -> None:
        readers = [tf.train.load_checkpoint(prefix) for prefix in prefixes]
        names = sorted(readers[0].get_variable_to_shape_map())
        values = []
        for name in names:
            total = readers[0].get_tensor(name)
            for reader in readers[1:]:
                total += reader.get_tensor(name)
            values.append(tf.constant(total / np.float32(len(readers))))
        tf.raw_ops.SaveV2(prefix=destination, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values)
        for path in Path(destination).parent.glob(f"{Path(destination).name}.*"):
            with path.open("rb") as file:
                os.fsync(file.fileno())

    return run


def anonymous_bytes() -> int:
    """Return the memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not tell")


class Peak(threading.Thread):
    """Looks at the anonymous memory again and again."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = anonymous_bytes()
        self._done = threading.Event()

    def run(self) -> None:
        """Look until stopped."""
        while not self._done.wait(0.005):
            self.bytes = max(self.bytes, anonymous_bytes())

    def stop(self) -> int:
        """Stop looking and return the most that was seen."""
        self._done.set()
        self.join()
        return self.bytes


def main() -> None:
    """Run one and print what it took."""
    kind, destination, *prefixes = sys.argv[1:]
    Path(destination).parent.mkdir(parents=True, exist_ok=True)
    run = {"ours": ours, "tensorflow": tensorflow}[kind](prefixes, destination)
    before, peak = anonymous_bytes(), Peak()
    peak.start()
    started, cpu = time.monotonic(), time.process_time()
    run()
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    print(
        json.dumps({"seconds": seconds, "cpu": cpu, "MB": (peak.stop() - before) / 1e6, "whole MB": peak.bytes / 1e6})
    )


if __name__ == "__main__":
    main()
