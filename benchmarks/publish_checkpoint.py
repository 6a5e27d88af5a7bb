"""Bring a checkpoint to HDFS once: ``publish_checkpoint.py ours|averaged|native URI FOLDER PREFIX…``.

``ours`` is what the tasks do after the training: take the checksums, publish. ``averaged`` makes the average first.
``native`` is the bare upload of the same files with hdfs-native. Imports are not measured, nor are they in a task.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from airflow_tf.core.checkpoint.average import average
from airflow_tf.core.manifest import PublishManifest
from airflow_tf.operators.candidates import collect, describe
from airflow_tf.operators.sending import Sending
from airflow_tf.storage.client import publish
from airflow_tf.storage.options import StorageOptions

_CHUNK_BYTES = 1 << 20


def ours(uri: str, folder: Path, prefix: str, written: dict[str, int] | None = None) -> None:
    """Collect, describe and publish."""
    local = collect(prefix, folder / "model")
    manifest = PublishManifest(fence=1, digest=uri, files=describe(local, written))
    publish(local, uri, options=StorageOptions.from_uri(uri), manifest=manifest, on_progress=lambda _text: None)


def averaged(uri: str, folder: Path, prefixes: Sequence[str]) -> None:
    """Average with verification of the inputs, its data on the way while it is made, then as ``ours``."""
    with Sending(uri, StorageOptions.from_uri(uri), 1, print, least_bytes=0) as sending:
        report = average(prefixes, str(folder / "average"), on_begin=sending.begin)
    ours(uri, folder, report.destination, report.data)


def native(uri: str, prefix: str) -> None:
    """Write each file of the checkpoint, all at once."""
    parts, source = urlsplit(uri), Path(prefix)
    store = importlib.import_module("hdfs_native").Client(f"hdfs://{parts.netloc}")
    store.mkdirs(parts.path, create_parent=True)

    def send(path: Path) -> None:
        with path.open("rb") as file, store.create(f"{parts.path}/{path.name}") as writer:
            while chunk := file.read(_CHUNK_BYTES):
                writer.write(chunk)

    files = [path for path in source.parent.iterdir() if path.name.startswith(f"{source.name}.")]
    with ThreadPoolExecutor(len(files)) as pool:
        for done in [pool.submit(send, path) for path in files]:
            done.result()


def main() -> None:
    """Do it and print the seconds."""
    kind, uri, folder, prefixes = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:]
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "native":
        importlib.import_module("hdfs_native")
    started, before = time.monotonic(), time.process_time()
    if kind == "native":
        native(uri, prefixes[0])
    elif kind == "ours":
        ours(uri, folder, prefixes[0])
    else:
        averaged(uri, folder, prefixes)
    seconds, used = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"seconds": seconds, "cpu": time.process_time() + used.ru_utime + used.ru_stime - before}))


if __name__ == "__main__":
    main()
