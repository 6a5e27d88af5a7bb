"""The mover: a process of its own for the I/O of one job, ``python -m airflow_tf.storage.mover``.

The job comes as JSON on standard input (never as an argument: it may hold secrets); events go to standard output, one
JSON object a line. A hung file system then costs a killed process, not a hung task (:mod:`airflow_tf.storage.client`).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow_tf.core.errors import AirflowTfError, PublishError, to_payload
from airflow_tf.core.manifest import PublishManifest
from airflow_tf.core.retention import Keep
from airflow_tf.storage.ahead import Ahead
from airflow_tf.storage.base import Uri
from airflow_tf.storage.cache import Cache, boot_id
from airflow_tf.storage.carrying import Carried
from airflow_tf.storage.destination import Destination
from airflow_tf.storage.kerberos import process_variables
from airflow_tf.storage.local import local_error
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.storage.publishing import Publisher
from airflow_tf.storage.registry import open_file_system
from airflow_tf.storage.staging import Stager, measure
from airflow_tf.storage.uploading import Uploader
from airflow_tf.storage.versions import Versions

_PR_SET_PDEATHSIG = 1
_RETRY_SHARE = 0.6  # of the parent's deadline: the mover gives up first and can say why


def main() -> int:
    """Run the job on standard input; exit code 1 if it failed."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is the parent's to handle; it ends this process
    events = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not break the protocol
    reporter = Reporter(events)
    job = json.loads(sys.stdin.readline())
    if os.getppid() != job["parent_pid"]:
        return 1
    try:
        result = _run(job, reporter)
    except BaseException as error:  # noqa: BLE001 -- a panic of hdfs-native is no Exception; all is reported
        if not isinstance(error, AirflowTfError):
            traceback.print_exc()
        reporter.send("error", error=to_payload(error))
        return 1
    reporter.send("result", result=result)
    return 0


def _die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _run(job: dict[str, Any], reporter: Reporter) -> Any:  # noqa: ANN401 -- JSON-plain result
    uri, options = Uri.parse(job["uri"]), StorageOptions.from_json(job["options"])
    os.environ.update(process_variables(options))
    actions: dict[str, Callable[[dict[str, Any], Uri, StorageOptions, Reporter], Any]]
    actions = {
        "stage": _stage,
        "publish": _publish,
        "send": _send,
        "upload": _upload,
        "probe": _probe,
        "measure": _measure,
        "latest": _latest,
        "check": _check,
        "carry": lambda job, *parts: _carried(job, *parts).put(Path(job["local"])),
        "carried": lambda *parts: _carried(*parts).newest(),
        "forget": lambda _job, uri, options, _reporter: open_file_system(uri, options).delete(uri.path),
        "versions": lambda *parts: _versions(*parts).rows(),
        "prune": _prune,
    }
    try:
        return actions[job["action"]](job, uri, options, reporter)
    except OSError as error:
        raise local_error(error, job["action"], f"{uri}{_at(error)}") from error


def _at(error: OSError) -> str:
    return f" ({error.filename2 or error.filename})" if error.filename else ""


def _patience(job: dict[str, Any], reporter: Reporter) -> Patience:
    return Patience(job["stall_seconds"] * _RETRY_SHARE, reporter.note)


def _stage(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> None:
    stager = Stager(
        uri=uri,
        options=options,
        files=open_file_system(uri, options),
        cache=Cache(Path(job["cache_dir"]), job["cache_bytes"], boot_id(), reporter.tick),
        reporter=reporter,
        patience=_patience(job, reporter),
        require_success=job["require_success"],
    )
    stager.run(Path(job["target"]))


def _publish(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> str:
    publisher = Publisher(
        uri=uri,
        files=open_file_system(uri, options),
        reporter=reporter,
        patience=_patience(job, reporter),
        manifest=PublishManifest(**job["manifest"]),
        confirm=lambda: _ask(reporter),
    )
    return publisher.run(Path(job["local"]))


def _send(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> str:
    ahead = Ahead(uri, open_file_system(uri, options), reporter, _patience(job, reporter), job["fence"])
    return ahead.send(Path(job["local"]), job["name"], job["size"])


def _ask(reporter: Reporter) -> None:
    """Wait for the parent's consent; a parent that refuses ends this process."""
    reporter.send("ready")
    if not sys.stdin.readline():
        raise PublishError("nothing was published", "the task that publishes has ended")


def _versions(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> Versions:
    return Versions(uri, open_file_system(uri, options), _patience(job, reporter))


def _latest(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> str | None:
    return _versions(job, uri, options, reporter).latest()


def _carried(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> Carried:
    return Carried(uri, open_file_system(uri, options), reporter, _patience(job, reporter))


def _check(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> None:
    Destination(uri, open_file_system(uri, options), _patience(job, reporter)).check()


def _prune(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> list[dict[str, Any]]:
    return _versions(job, uri, options, reporter).prune(
        Keep(**job["keep"]), job["metric"], job["grace_seconds"], dry_run=job["dry_run"]
    )


def _upload(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> dict[str, Any]:
    uploader = Uploader(
        uri=uri,
        files=open_file_system(uri, options),
        reporter=reporter,
        patience=_patience(job, reporter),
        overwrite=job["overwrite"],
    )
    return uploader.run(Path(job["local"]))


def _probe(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> dict[str, Any]:
    del job, reporter
    started = time.monotonic()
    info = open_file_system(uri, options).stat(uri.path)
    seconds = round(time.monotonic() - started, 3)
    return {"uri": str(uri), "backend": options.backend, "is_dir": info.is_dir, "seconds": seconds}


def _measure(job: dict[str, Any], uri: Uri, options: StorageOptions, reporter: Reporter) -> dict[str, Any]:
    files, cache, finished = open_file_system(uri, options), Path(job["cache_dir"]), job["require_success"]
    return asdict(measure(uri, options, files, cache, reporter.tick, require_success=finished))


if __name__ == "__main__":
    sys.exit(main())
