"""Jobs of the mover that read: see :mod:`airflow_tf.storage.mover`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow_tf.storage.base import Uri
from airflow_tf.storage.cache import Cache, boot_id
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Reporter, patience_of
from airflow_tf.storage.registry import open_file_system
from airflow_tf.storage.staging import Stager, measure


def _stage(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> None:
    stager = Stager(
        uri=uri,
        options=options,
        files=open_file_system(uri, options),
        cache=Cache(Path(job["cache_dir"]), job["cache_bytes"], boot_id(), reporter.tick),
        reporter=reporter,
        patience=patience_of(job, reporter),
        require_success=job["require_success"],
    )
    stager.run(Path(job["target"]))


def _measure(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> dict[str, Any]:
    files, cache, finished = open_file_system(uri, options), Path(job["cache_dir"]), job["require_success"]
    return asdict(measure(uri, options, files, cache, reporter.tick, require_success=finished))


def _probe(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> dict[str, Any]:
    del job, reporter
    started = time.monotonic()
    info = open_file_system(uri, options).stat(uri.path)
    seconds = round(time.monotonic() - started, 3)
    return {"uri": str(uri), "backend": options.backend, "is_dir": info.is_dir, "seconds": seconds}


JOBS: dict[str, Callable[[dict[str, Any], Uri, StorageOptions, Reporter], Any]] = {
    "stage": _stage,
    "measure": _measure,
    "probe": _probe,
}
