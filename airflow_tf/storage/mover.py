"""The mover: a process of its own for the I/O of one job, ``python -m airflow_tf.storage.mover``.

The job comes as JSON on standard input (never as an argument: it may hold secrets); events go to standard output, one
JSON object a line. A hung file system then costs a killed process, not a hung task (:mod:`airflow_tf.storage.client`).
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any

from airflow_tf.core.errors import AirflowTfError, DeclarationError, to_payload
from airflow_tf.storage.base import Uri
from airflow_tf.storage.kerberos import process_variables
from airflow_tf.storage.local import local_error
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Reporter

_PR_SET_PDEATHSIG = 1
_STAGING = {"stage", "measure", "probe"}
_OF_SEVERAL = {"stage", "measure"}


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
    name = job["action"]
    if uri.others and name not in _OF_SEVERAL:
        raise DeclarationError(f"{uri} names several places", "one is needed here", "Give one URI.")
    # What a job does not need is not imported: for an unchanged input the imports take most of the time.
    jobs = importlib.import_module(f"airflow_tf.storage.{'staging' if name in _STAGING else 'publishing'}_jobs").JOBS
    try:
        return jobs[name](job, uri, options, reporter)
    except OSError as error:
        raise local_error(error, name, f"{uri}{_at(error)}") from error


def _at(error: OSError) -> str:
    return f" ({error.filename2 or error.filename})" if error.filename else ""


if __name__ == "__main__":
    sys.exit(main())
