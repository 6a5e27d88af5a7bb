"""Write the protobuf descriptors that airflow_tf ships, taken from the installed TensorFlow.

Run it after a change of the supported TensorFlow version: ``.venv/bin/python scripts/build_descriptors.py``.
With ``--check`` nothing is written; the exit status says whether the shipped files are what would be written.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

CORE = Path(__file__).resolve().parent.parent / "airflow_tf" / "core"

# Shipped file -> the generated modules whose messages it must hold; their imports come along.
SHIPPED = {
    CORE / "session_config" / "config.fds": ["tensorflow.core.protobuf.config_pb2"],
    CORE / "checkpoint" / "bundle.fds": [
        "tensorflow.core.protobuf.tensor_bundle_pb2",
        "tensorflow.core.protobuf.trackable_object_graph_pb2",
        "tensorflow.python.training.checkpoint_state_pb2",
    ],
}


def closure(module_names: list[str]) -> bytes:
    """Return a serialized FileDescriptorSet of the modules' files, every file after the files it imports."""
    from google.protobuf import descriptor_pb2  # noqa: PLC0415 - TensorFlow must choose the protobuf backend first

    result = descriptor_pb2.FileDescriptorSet()
    seen: set[str] = set()

    def add(file: Any) -> None:  # noqa: ANN401 - protobuf's FileDescriptor has a different class per backend
        if file.name in seen:
            return
        seen.add(file.name)
        for dependency in file.dependencies:
            add(dependency)
        file.CopyToProto(result.file.add())

    for name in module_names:
        add(importlib.import_module(name).DESCRIPTOR)
    data: bytes = result.SerializeToString(deterministic=True)
    return data


def main() -> int:
    """Write or check every shipped file; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    stale = 0
    for path, modules in SHIPPED.items():
        data = closure(modules)
        same = path.exists() and path.read_bytes() == data
        stale += not same
        if not check and not same:
            path.write_bytes(data)
        print(f"{path.relative_to(CORE.parent.parent)}: {len(data)} bytes, {'unchanged' if same else 'differs'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
