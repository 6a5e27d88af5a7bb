"""Staging and publishing as the rest of the product calls them: each call runs one mover and watches it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from airflow_tf.core.errors import StorageError, StorageUnavailableError, from_payload
from airflow_tf.core.manifest import Measured, PublishManifest, StagedInput
from airflow_tf.core.retention import Keep
from airflow_tf.core.units import format_bytes
from airflow_tf.storage.base import Uri
from airflow_tf.storage.lock import locked
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.staging import already_staged, building_path, manifest_path
from airflow_tf.storage.versions import GRACE_SECONDS

Log = Callable[[str], None]

_LOG_EVERY_SECONDS = 10.0
_READ_BYTES = 1 << 16
_TAIL_BYTES = 2000
# The HDFS client takes and gives back memory by the 64 KiB. What glibc hands to the kernel at once is faulted in anew
# for the next piece: four times the page faults and a tenth of the processor time. One arena and a wide margin keep it.
_MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_TOP_PAD_": str(4 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
}


def stage(  # noqa: PLR0913 -- what to stage, where to, and what to refuse; all by name
    uri: str,
    *,
    options: StorageOptions,
    target: Path,
    cache_dir: Path,
    cache_bytes: int,
    on_progress: Log,
    stall_seconds: float = 60.0,
    refresh: bool = False,
    require_success: bool = False,
) -> StagedInput:
    """Make ``target`` a folder of read-only links to copies of all data files that ``uri`` names.

    The manifest lies beside it (:func:`~airflow_tf.storage.staging.manifest_path`). A source that is staged there
    already is returned without asking the file system, unless ``refresh``. Processes that stage into one folder at
    the same time wait for each other.

    :param require_success: refuse folders in and above which no ``_SUCCESS`` says that their job has finished.
    :raises StorageError: naming the URI, if it cannot be read or the disk will not hold it.
    :raises StorageUnavailableError: also if nothing moved for ``stall_seconds``.
    """
    source = str(Uri.parse(uri))
    with locked(target, lambda: on_progress("waiting for another process that stages the same input")):
        if not refresh and (found := already_staged(source, target)):
            return found
        where = {"target": str(target), "cache_dir": str(cache_dir), "cache_bytes": cache_bytes}
        job = where | {"require_success": require_success}
        try:
            _run_mover("stage", uri, options, job, on_progress, stall_seconds)
        except BaseException:
            shutil.rmtree(building_path(target), ignore_errors=True)  # a killed mover could not
            raise
        return StagedInput.loads(manifest_path(target).read_text(encoding="utf-8"))


def publish(
    local: Path,
    destination: str,
    *,
    options: StorageOptions,
    manifest: PublishManifest,
    on_progress: Log,
    confirm: Callable[[], None] = lambda: None,
    stall_seconds: float = 60.0,
) -> str:
    """Put the manifest's files at ``destination`` with ``manifest.json`` and ``_SUCCESS``, all or nothing; return it.

    Idempotent: the same digest at the destination is a success; a result of ours with a lower fence is replaced. The
    file ``_latest`` beside the versions names the newest.

    :param confirm: called when all files are there, right before they appear; what it raises keeps them from it.
    :raises StorageExistsError: if the destination is not ours, or newer.
    :raises PublishError: if a local file is not what the manifest says.
    :raises StorageUnavailableError: if nothing moved for ``stall_seconds``.
    """
    job = {"local": str(local), "manifest": asdict(manifest)}
    return str(_run_mover("publish", destination, options, job, on_progress, stall_seconds, confirm))


def send_ahead(
    local: Path,
    destination: str,
    *,
    options: StorageOptions,
    fence: int,
    name: str,
    size: int,
    stall_seconds: float = 60.0,
) -> None:
    """Send a file that is still being written to where :func:`publish` under the same fence will look for it.

    :param name: of the file in the version.
    :param size: in bytes, that it will have.
    :raises PublishError: if it is deleted before it has that size.
    :raises StorageError: whatever the file system says; nothing is left then.
    """
    job = {"local": str(local), "fence": fence, "name": name, "size": size}
    _run_mover("send", destination, options, job, lambda _text: None, stall_seconds)


def latest_version(base: str, *, options: StorageOptions, stall_seconds: float = 60.0) -> str | None:
    """Return the URI of the newest version published below ``base``, None where there is none."""
    found = _run_mover("latest", base, options, {}, lambda _text: None, stall_seconds)
    return None if found is None else str(found)


def list_versions(base: str, *, options: StorageOptions, stall_seconds: float = 60.0) -> list[dict[str, Any]]:
    """Return the whole versions below ``base``, oldest first: version, step, published (seconds), metrics, state."""
    rows: list[dict[str, Any]] = _run_mover("versions", base, options, {}, lambda _text: None, stall_seconds)
    return rows


def carry(local: Path, uri: str, *, options: StorageOptions, stall_seconds: float = 60.0) -> str:
    """Keep a folder with one checkpoint below ``uri`` instead of an older one; return where it is."""
    return str(_run_mover("carry", uri, options, {"local": str(local)}, lambda _text: None, stall_seconds))


def carried(uri: str, *, options: StorageOptions, stall_seconds: float = 60.0) -> str | None:
    """Return the URI of the last folder, by name, that :func:`carry` has left below ``uri``, None without one."""
    found = _run_mover("carried", uri, options, {}, lambda _text: None, stall_seconds)
    return None if found is None else str(found)


def forget_carried(uri: str, *, options: StorageOptions, stall_seconds: float = 60.0) -> None:
    """Remove all that :func:`carry` has left below ``uri``."""
    _run_mover("forget", uri, options, {}, lambda _text: None, stall_seconds)


def check_destination(base: str, *, options: StorageOptions, stall_seconds: float = 30.0) -> None:
    """Find out, by a file that is written and deleted, whether versions can be published below ``base``.

    :raises StorageError: why not; its subclass ``StorageUnavailableError`` if that is not known now.
    """
    _run_mover("check", base, options, {}, lambda _text: None, stall_seconds)


def prune_versions(
    base: str,
    *,
    options: StorageOptions,
    keep: Keep,
    metric: str | None,
    on_progress: Log,
    grace_seconds: float = GRACE_SECONDS,
    dry_run: bool = False,
    stall_seconds: float = 60.0,
) -> list[dict[str, Any]]:
    """Remove versions below ``base`` that no rule keeps, in two phases; return ``version``, ``result``, ``reason``."""
    job = {"keep": asdict(keep), "metric": metric, "grace_seconds": grace_seconds, "dry_run": dry_run}
    rows: list[dict[str, Any]] = _run_mover("prune", base, options, job, on_progress, stall_seconds)
    return rows


def upload(
    local: Path,
    destination: str,
    *,
    options: StorageOptions,
    overwrite: bool,
    on_progress: Log,
    stall_seconds: float = 60.0,
) -> dict[str, Any]:
    """Write a local file or folder to ``destination``, all or nothing; return destination, files and bytes.

    :raises StorageExistsError: if the destination exists, unless ``overwrite``.
    :raises StorageUnavailableError: if nothing moved for ``stall_seconds``.
    """
    job = {"local": str(local.absolute()), "overwrite": overwrite}
    answer: dict[str, Any] = _run_mover("upload", destination, options, job, on_progress, stall_seconds)
    return answer


def probe(uri: str, *, options: StorageOptions, stall_seconds: float = 10.0) -> dict[str, Any]:
    """Ask for one path and return ``uri``, ``backend``, ``is_dir`` and ``seconds``; raises as :func:`stage` does."""
    answer: dict[str, Any] = _run_mover("probe", uri, options, {}, lambda _text: None, stall_seconds)
    return answer


def measure(
    uri: str, *, options: StorageOptions, cache_dir: Path, require_success: bool = False, stall_seconds: float = 10.0
) -> Measured:
    """Count what :func:`stage` would copy, and what of it is cached; raises as it does, and writes nothing."""
    job = {"cache_dir": str(cache_dir), "require_success": require_success}
    return Measured(**_run_mover("measure", uri, options, job, lambda _text: None, stall_seconds))


def _run_mover(
    action: str,
    uri: str,
    options: StorageOptions,
    job: dict[str, Any],
    on_progress: Log,
    stall_seconds: float,
    confirm: Callable[[], None] = lambda: None,
) -> Any:  # noqa: ANN401 -- the job's JSON-plain result
    whole = job | {
        "action": action,
        "uri": uri,
        "options": options.to_json(),
        "stall_seconds": stall_seconds,
        "parent_pid": os.getpid(),
    }
    with tempfile.TemporaryFile() as errors:
        # -P: a module in the working folder must not shadow a library.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "airflow_tf.storage.mover"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_MALLOC | os.environ,
        )
        try:
            return _Watch(process, uri, on_progress, stall_seconds, confirm).result(json.dumps(whole).encode(), errors)
        finally:  # also on KeyboardInterrupt; after the death of this process the kernel does it
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):  # unsent input of a mover that died at once
                    if pipe:
                        pipe.close()


class _Watch:
    """Reads one mover's events until its result, with a deadline that only progress postpones."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        uri: str,
        on_progress: Log,
        stall_seconds: float,
        confirm: Callable[[], None],
    ) -> None:
        self._confirm = confirm
        self._process, self._uri = process, uri
        self._on_progress, self._stall_seconds = on_progress, stall_seconds
        self._started = self._logged = time.monotonic()

    def result(self, job: bytes, errors: IO[bytes]) -> Any:  # noqa: ANN401 -- the job's JSON-plain result
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it died at once; its exit code tells below
            self._process.stdin.write(job + b"\n")
            self._process.stdin.flush()
        for event in self._events():
            match event["event"]:
                case "result":
                    return event["result"]
                case "error":
                    raise from_payload(event["error"])
                case "ready":
                    self._confirm()
                    with contextlib.suppress(BrokenPipeError):  # it died meanwhile; its exit code tells below
                        self._process.stdin.write(b"go\n")
                        self._process.stdin.flush()
                case "note":
                    self._on_progress(event["text"])
                case "progress":
                    self._log_progress(event)
        code = self._process.wait()
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TAIL_BYTES))
        tail = errors.read().decode(errors="replace").strip()
        if code < 0:
            raise StorageUnavailableError(
                f"The transfer of {self._uri} ended",
                f"its process was killed by signal {-code}",
                "Try again: finished files are not copied twice.",
            )
        raise StorageError(f"The transfer of {self._uri} ended", f"its process exited with {code}: {tail}")

    def _events(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout
        descriptor, rest = self._process.stdout.fileno(), b""
        deadline = time.monotonic() + self._stall_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while True:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise StorageUnavailableError(
                        f"{self._uri} did not answer for {self._stall_seconds:g} s",
                        "nothing moved and the call was given up",
                        "Check that the NameNode and DataNodes answer and are reachable from this host, then retry.",
                    )
                data = os.read(descriptor, _READ_BYTES)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    event: dict[str, Any] = json.loads(line)
                    if event["event"] == "progress":
                        deadline = time.monotonic() + self._stall_seconds
                    yield event

    def _log_progress(self, counts: dict[str, Any]) -> None:
        now = time.monotonic()
        if now - self._logged < _LOG_EVERY_SECONDS or not counts["total_bytes"]:
            return
        self._logged = now
        self._on_progress(describe_progress(counts, now - self._started))


def describe_progress(counts: dict[str, Any], seconds: float) -> str:
    """Return a line for people: files, bytes, rate and the time left at that rate."""
    rate = counts["bytes"] / max(seconds, 1e-3)
    left = max(0, counts["total_bytes"] - counts["bytes"]) / rate if rate else 0.0
    return (
        f"{counts['files']} of {counts['total_files']} files, {format_bytes(counts['bytes'])} of "
        f"{format_bytes(counts['total_bytes'])}, {rate / 1e6:.1f} MB/s, about {left:.0f} s left"
    )
