"""Stage a source with an empty cache and print the peaks of memory: ``stage_once.py URI FOLDER``."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from airflow_tf.storage import client
from airflow_tf.storage.options import StorageOptions


def main(uri: str, folder: Path) -> None:
    """Stage once; ``caller`` and ``mover`` are kilobytes, and include what both have as interpreters."""
    staged = client.stage(
        uri,
        options=StorageOptions.from_uri(uri),
        target=folder / "data",
        cache_dir=folder / "cache",
        cache_bytes=1 << 50,
        on_progress=lambda _text: None,
    )
    peaks = {
        "caller": _peak_of_this_process(),
        "mover": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
    }
    print(json.dumps({"files": len(staged.files), "bytes": staged.total_bytes} | peaks))


def _peak_of_this_process() -> int:
    """Return kilobytes; ``getrusage`` would count the process that has started this one."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
