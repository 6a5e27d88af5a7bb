"""Jobs of the mover that write, or look at what was written: see :mod:`airflow_tf.storage.mover`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_tf.core.errors import PublishError
from airflow_tf.core.manifest import PublishManifest
from airflow_tf.core.retention import Keep
from airflow_tf.storage.ahead import Ahead
from airflow_tf.storage.base import Uri
from airflow_tf.storage.carrying import Carried
from airflow_tf.storage.destination import Destination
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Reporter, patience_of
from airflow_tf.storage.publishing import Publisher
from airflow_tf.storage.registry import open_file_system
from airflow_tf.storage.uploading import Uploader
from airflow_tf.storage.versions import Versions


def _publish(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> str:
    publisher = Publisher(
        uri=uri,
        files=open_file_system(uri, options),
        reporter=reporter,
        patience=patience_of(job, reporter),
        manifest=PublishManifest(**job["manifest"]),
        confirm=lambda: _ask(reporter),
    )
    return publisher.run(Path(job["local"]))


def _send(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> str:
    ahead = Ahead(uri, open_file_system(uri, options), reporter, patience_of(job, reporter), job["fence"])
    return ahead.send(Path(job["local"]), job["name"], job["size"])


def _ask(reporter: Reporter) -> None:
    """Wait for the parent's consent; a parent that refuses ends this process."""
    reporter.send("ready")
    if not sys.stdin.readline():
        raise PublishError("nothing was published", "the task that publishes has ended")


def _versions(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> Versions:
    return Versions(uri, open_file_system(uri, options), patience_of(job, reporter), reporter.tick)


def _latest(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> str | None:
    return _versions(job, uri, options, reporter).latest()


def _carried(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> Carried:
    return Carried(uri, open_file_system(uri, options), reporter, patience_of(job, reporter))


def _check(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> None:
    Destination(uri, open_file_system(uri, options), patience_of(job, reporter)).check()


def _prune(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> list[dict[str, Any]]:
    return _versions(job, uri, options, reporter).prune(
        Keep(**job["keep"]), job["metric"], job["grace_seconds"], dry_run=job["dry_run"]
    )


def _upload(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> dict[str, Any]:
    uploader = Uploader(
        uri=uri,
        files=open_file_system(uri, options),
        reporter=reporter,
        patience=patience_of(job, reporter),
        overwrite=job["overwrite"],
    )
    return uploader.run(Path(job["local"]))


JOBS: dict[str, Callable[[dict[str, Any], Uri, StorageOptions, Reporter], Any]] = {
    "publish": _publish,
    "send": _send,
    "upload": _upload,
    "latest": _latest,
    "check": _check,
    "carry": lambda job, *parts: _carried(job, *parts).put(Path(job["local"])),
    "carried": lambda *parts: _carried(*parts).newest(),
    "forget": lambda _job, uri, options, _reporter: open_file_system(uri, options).delete(uri.path),
    "versions": lambda *parts: _versions(*parts).rows(),
    "prune": _prune,
}
