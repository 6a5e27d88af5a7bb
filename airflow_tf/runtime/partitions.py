"""What the first runs of sessions and functions were made of: each operation's device, and what moves between devices.

``log_device_placement`` tells where the placer put a graph. What really runs are its partitions, one per device, after
TensorFlow has optimised them and joined them by sends and receives; a run returns them where it is asked to. What the
program itself asked for is told with them, as far as it says why an operation is on the CPU.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_tf.core.launch import PARTITIONS_FILE

MAX_RUNS = 16
"""Runs of this process that tell something new: initialisation and the first step or two, the rest repeats."""
MAX_ASKED = 100
"""Runs of this process that are asked: a worker may look many times whether its chief has initialised all."""

Program = Mapping[str, tuple[str, str]]
"""Operation -> its type and the device that the program asks for, empty if none."""

_LOG = logging.getLogger("airflow_tf.placement")


def record(folder: Path, *, api: str, has_gpu: bool) -> None:
    """Let the first runs of this process tell their partitions, one line of JSON for each operation.

    :param api: ``tf2`` (functions), ``v1`` (sessions) or ``auto`` (both).
    :param has_gpu: whether to tell what may have put operations on the CPU, not only which asked for a GPU.
    """
    recorder = _Recorder(folder / PARTITIONS_FILE, has_gpu=has_gpu)
    if api != "tf2":
        _record_sessions(recorder)
    if api != "v1":
        _record_functions(recorder)


def _record_sessions(recorder: _Recorder) -> None:
    v1 = importlib.import_module("tensorflow").compat.v1
    base = importlib.import_module("tensorflow.python.client.session").BaseSession
    base.run = _recording(base.run, v1, recorder)


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
        recorder.write(metadata, recorder.program_of(self.graph))
        metadata.ClearField("partition_graphs")
        return result

    return run


def _asks(options: Any) -> bool:  # noqa: ANN401
    """Tell whether a run is traced by the program itself; a monitored session passes options that ask for nothing."""
    return options is not None and bool(options.trace_level or options.output_partition_graphs)


def _gives_none(session: Any) -> bool:  # noqa: ANN401
    return bool(session._config.experimental.disable_output_partition_graphs)  # noqa: SLF001 (no public way)


def _record_functions(recorder: _Recorder) -> None:
    """Collect the graphs of a function while one is called from outside of all; afterwards nothing of this is left.

    A function has a graph to tell only where a call of it is the first with such arguments.
    """
    context = importlib.import_module("tensorflow.python.eager.context").context
    function = importlib.import_module("tensorflow.python.eager.polymorphic_function.polymorphic_function").Function
    original = function.__call__

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401, N807
        if recorder.is_done:
            function.__call__ = original
        ours = context()
        if recorder.is_done or not ours.executing_eagerly():
            return original(self, *args, **options)
        recorder.asked += 1
        ours.enable_graph_collection()
        try:
            return original(self, *args, **options)
        finally:
            recorder.write_functions(ours)
            ours.disable_graph_collection()

    function.__call__ = __call__


class _Recorder:
    def __init__(self, file: Path, *, has_gpu: bool) -> None:
        self.asked = 0
        self._told = 0
        self._file = file
        self._has_gpu = has_gpu
        self._seen: set[tuple[str, str]] = set()
        self._named: set[str] = set()
        self._graph: tuple[int, int] = (0, 0)
        self._program: Program = {}
        self._lock = threading.Lock()

    @property
    def is_done(self) -> bool:
        """Tell whether no further run is to be asked; threads of the program may have asked one too many."""
        return self._told >= MAX_RUNS or self.asked >= MAX_ASKED

    def program_of(self, graph: Any) -> Program:  # noqa: ANN401
        """Return what a session's graph asks for, read again only where the graph is another or has grown."""
        if self._graph != (id(graph), graph.version):
            self._graph = (id(graph), graph.version)
            self._program = {one.name: (one.type, one.device) for one in graph.get_operations()}
        return self._program

    def write_functions(self, context: Any) -> None:  # noqa: ANN401
        """Append what a context has collected; graphs of more than 2 GiB, which it cannot hand out, end no training."""
        try:
            metadata = context.export_run_metadata()
        except _errors() as error:
            self._give_up(error)
            return
        nodes = (node for function in metadata.function_graphs for node in function.pre_optimization_graph.node)
        self.write(metadata, {node.name: (node.op, node.device) for node in nodes})

    def _give_up(self, error: Exception) -> None:
        self._told = MAX_RUNS
        _LOG.warning("partitions of graphs are not recorded: %s", error)

    def write(self, metadata: Any, program: Program) -> None:  # noqa: ANN401
        """Append what has not been told before; a full disk ends no training."""
        with self._lock:
            lines = [json.dumps(row) + "\n" for row in (*self._ran(metadata, program), *self._not_ran(program))]
            self._told += bool(lines)
            try:
                with self._file.open("a") as file:
                    file.writelines(lines)
            except OSError as error:
                self._give_up(error)

    def _ran(self, metadata: Any, program: Program) -> Iterator[dict[str, Any]]:  # noqa: ANN401
        for node in (node for graph in metadata.partition_graphs for node in graph.node):
            if (node.name, node.device) not in self._seen:
                self._seen.add((node.name, node.device))
                self._named.add(node.name)
                row = {"name": node.name, "type": node.op, "device": node.device}
                if node.op in {"_Recv", "_HostRecv"}:
                    row["from"] = node.attr["send_device"].s.decode()
                asked = program.get(node.name, ("", ""))[1]
                if self._tells(asked) and ":CPU:" in node.device.upper():
                    row |= {"asked": asked, "types": _types(node)}
                yield row

    def _not_ran(self, program: Program) -> Iterator[dict[str, Any]]:
        """Yield what asks for a device and is in no partition: TensorFlow has folded it, or it runs later."""
        for name, (kind, asked) in program.items():
            if asked and self._tells(asked) and name not in self._named:
                self._named.add(name)
                yield {"name": name, "type": kind, "asked": asked}

    def _tells(self, asked: str) -> bool:
        return self._has_gpu or ":GPU" in asked.upper()


def _errors() -> tuple[type[Exception], ...]:
    """Return what TensorFlow and protobuf raise where a message is too large."""
    decode_error = importlib.import_module("google.protobuf.message").DecodeError
    return importlib.import_module("tensorflow").errors.OpError, decode_error


def _types(node: Any) -> dict[str, list[str]]:  # noqa: ANN401
    as_dtype = importlib.import_module("tensorflow").as_dtype
    found: dict[str, Iterable[int]] = {
        name: [value.type] if value.type else value.list.type for name, value in node.attr.items()
    }
    return {name: [as_dtype(kind).name for kind in kinds] for name, kinds in found.items() if kinds}
