"""What a published version says about where it came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from airflow_tf.core.checkpoint import BundleReader
from airflow_tf.core.checkpoint.rules import step_of
from airflow_tf.core.identity import RunFolders, digest
from airflow_tf.core.manifest import StagedInput
from airflow_tf.hooks.code import code_version
from airflow_tf.hooks.initial import INITIAL_INPUT, initial_place
from airflow_tf.hooks.staging import staged_as
from airflow_tf.storage.staging import manifest_path

_PACKAGES = ("airflow-tf", "apache-airflow", "tensorflow", "tensorflow-cpu", "keras", "numpy")


def published_step(prefix: str) -> int | None:
    """Return the training step of a checkpoint, None where it has none."""
    with BundleReader(prefix) as reader:
        return step_of(reader)


def packages() -> dict[str, str]:
    """Return the versions of the packages that made a model, as far as Airflow's interpreter has them."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def staged_inputs(folders: RunFolders, task_id: str, inputs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what was staged for a training on this host: source, files, bytes, and a digest of the files' versions.

    :param inputs: as the task ``task_id`` takes them, before they are rendered.
    """
    places = {name: staged_as(name, spec) for name, spec in inputs.items()}
    places |= {INITIAL_INPUT: initial_place(task_id)}
    found = {}
    for name, place in sorted(places.items()):
        path = manifest_path(folders.staged(place))
        if not path.exists():
            continue
        staged = StagedInput.loads(path.read_text(encoding="utf-8"))
        files = sorted((file.source, file.size, file.mtime_ms, file.crc32c) for file in staged.files)
        found[name] = {
            "source": staged.source,
            "files": len(files),
            "bytes": staged.total_bytes,
            "digest": digest(json.dumps(files), length=64),
        }
    return found


def code(
    entrypoint: str,
    given: str | None,
    dag: Any,  # noqa: ANN401 (Airflow exports no class for parsed DAGs)
    folders: RunFolders,
    bundle_version: str | None,
) -> dict[str, Any]:
    """Return the training program: its name, digests of its script and of all its code, the DAG bundle's version.

    :param given: the code that the run has copied; None: the entrypoint lies beside the DAG file.
    """
    copied = None if given is None else code_version(given, dag, folders)
    script = (Path(copied.folder) if copied else Path(dag.fileloc).parent) / entrypoint
    content = hashlib.sha256(script.read_bytes()).hexdigest() if script.is_file() else None
    found = {"entrypoint": entrypoint, "sha256": content, "bundle_version": bundle_version}
    return found | ({"source": copied.source, "digest": copied.digest, "files": copied.files} if copied else {})


def aggregation(aggregated: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return how a candidate was made, and of what."""
    return {
        "method": aggregated["method"],
        "same_start": aggregated.get("same_start"),
        "replicas": aggregated.get("metrics", {}),
        **aggregated.get("reports", {}).get(name, {}),
    }
