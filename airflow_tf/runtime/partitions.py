"""What the first runs of sessions were made of: each operation's device, and what moves between devices.

``log_device_placement`` tells where the placer put a graph. What really runs are its partitions, one per device, after
TensorFlow has optimised them and joined them by sends and receives; a run returns them where it is asked to.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
from pathlib import Path
from typing import Any

from airflow_tf.core.launch import PARTITIONS_FILE

MAX_RUNS = 16
"""Runs of this process that are asked: initialisation and the first step or two are other graphs, the rest repeats."""

_LOG = logging.getLogger("airflow_tf.placement")


def record(folder: Path) -> None:
    """Let the first runs of this process's sessions tell their partitions, one line of JSON for each operation."""
    v1 = importlib.import_module("tensorflow").compat.v1
    base = importlib.import_module("tensorflow.python.client.session").BaseSession
    base.run = _recording(base.run, v1, _Recorder(folder / PARTITIONS_FILE))


def _recording(original: Any, v1: Any, recorder: _Recorder) -> Any:  # noqa: ANN401 (TensorFlow has no types)
    @functools.wraps(original)
    def run(self: Any, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:  # noqa: ANN401
        if recorder.left == 0 or options is not None or run_metadata is not None or _gives_none(self):
            return original(self, fetches, feed_dict, options, run_metadata)
        recorder.left -= 1
        metadata = v1.RunMetadata()
        result = original(self, fetches, feed_dict, v1.RunOptions(output_partition_graphs=True), metadata)
        recorder.write(metadata)
        return result

    return run


def _gives_none(session: Any) -> bool:  # noqa: ANN401
    return bool(session._config.experimental.disable_output_partition_graphs)  # noqa: SLF001 (no public way)


class _Recorder:
    def __init__(self, file: Path) -> None:
        self.left = MAX_RUNS
        self._file = file
        self._seen: set[tuple[str, str]] = set()

    def write(self, metadata: Any) -> None:  # noqa: ANN401
        """Append what has not been told before; a full disk ends no training."""
        lines = []
        for node in (node for graph in metadata.partition_graphs for node in graph.node):
            if (node.name, node.device) not in self._seen:
                self._seen.add((node.name, node.device))
                row = {"name": node.name, "type": node.op, "device": node.device}
                if node.op in {"_Recv", "_HostRecv"}:
                    row["from"] = node.attr["send_device"].s.decode()
                lines.append(json.dumps(row) + "\n")
        try:
            with self._file.open("a") as file:
                file.writelines(lines)
        except OSError as error:
            self.left = 0
            _LOG.warning("partitions of graphs are not recorded: %s", error)
