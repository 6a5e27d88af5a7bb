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
"""Runs of this process that tell something new: initialisation and the first step or two, the rest repeats."""
MAX_ASKED = 100
"""Runs of this process that are asked: a worker may look many times whether its chief has initialised all."""

_LOG = logging.getLogger("airflow_tf.placement")


def record(folder: Path) -> None:
    """Let the first runs of this process's sessions tell their partitions, one line of JSON for each operation."""
    v1 = importlib.import_module("tensorflow").compat.v1
    base = importlib.import_module("tensorflow.python.client.session").BaseSession
    base.run = _recording(base.run, v1, _Recorder(folder / PARTITIONS_FILE))


def _recording(original: Any, v1: Any, recorder: _Recorder) -> Any:  # noqa: ANN401 (TensorFlow has no types)
    @functools.wraps(original)
    def run(self: Any, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:  # noqa: ANN401
        if recorder.is_done or _asks(options) or _gives_none(self):
            return original(self, fetches, feed_dict, options, run_metadata)
        recorder.asked += 1
        asking = v1.RunOptions(output_partition_graphs=True)
        if options is not None:
            asking.MergeFrom(options)
        metadata = v1.RunMetadata() if run_metadata is None else run_metadata
        result = original(self, fetches, feed_dict, asking, metadata)
        recorder.write(metadata)
        metadata.ClearField("partition_graphs")
        return result

    return run


def _asks(options: Any) -> bool:  # noqa: ANN401
    """Tell whether a run is traced by the program itself; a monitored session passes options that ask for nothing."""
    return options is not None and bool(options.trace_level or options.output_partition_graphs)


def _gives_none(session: Any) -> bool:  # noqa: ANN401
    return bool(session._config.experimental.disable_output_partition_graphs)  # noqa: SLF001 (no public way)


class _Recorder:
    def __init__(self, file: Path) -> None:
        self.asked = 0
        self._told = 0
        self._file = file
        self._seen: set[tuple[str, str]] = set()

    @property
    def is_done(self) -> bool:
        """Tell whether no further run is to be asked; threads of the program may have asked one too many."""
        return self._told >= MAX_RUNS or self.asked >= MAX_ASKED

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
        self._told += bool(lines)
        try:
            with self._file.open("a") as file:
                file.writelines(lines)
        except OSError as error:
            self._told = MAX_RUNS
            _LOG.warning("partitions of graphs are not recorded: %s", error)
