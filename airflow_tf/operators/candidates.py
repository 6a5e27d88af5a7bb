"""Choose among candidates, and make the folder that is published."""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.identity import digest
from airflow_tf.hooks.airflow_run import TaskRun
from airflow_tf.storage.cache_entries import checksum

log = logging.getLogger(__name__)

MODEL = "model"
"""Name of the checkpoint in a published version."""
DATA = f"{MODEL}.data-00000-of-00001"
"""Name of its data, where that is one file, as that of an average."""
SAVED_MODEL = "saved_model"
"""Folder of the export, in the run's folder and in a published version."""


def fresh_folder(folder: Path) -> Path:
    """Make an empty folder; what a killed try left in it is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    return folder


def version_name(run_after: dt.datetime, run: TaskRun) -> str:
    """Return ``v=<UTC>-<hash>``: the same for every try of a run, sortable, without ``:`` (HDFS refuses it)."""
    stamp = run_after.astimezone(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"v={stamp}-{digest(run.dag_id, run.run_id, length=8)}"


def result_digest(
    run: TaskRun, name: str, files: Mapping[str, Mapping[str, int]], evaluation: Mapping[str, Any]
) -> str:
    """Return what tells two results of a run apart, since an export or an evaluation may be corrected."""
    return digest(run.dag_id, run.run_id, json.dumps([name, files, evaluation], sort_keys=True))


def pull(ti: Any, from_task: str, evaluation_task: str | None) -> tuple[dict[str, Any], dict[str, Any] | None]:  # noqa: ANN401 (Airflow's own)
    """Return what the aggregation of this run left, and what the evaluation did, if there is one.

    :raises CheckpointError: if the aggregation left nothing.
    """
    aggregated = ti.xcom_pull(task_ids=from_task)
    if not aggregated:
        raise CheckpointError(f"task {from_task!r} left no candidates in this run")
    return aggregated, ti.xcom_pull(task_ids=evaluation_task) if evaluation_task else None


def choose(aggregated: Mapping[str, Any], evaluation: Mapping[str, Any] | None, metric: str | None, mode: str) -> str:
    """Return the name of the candidate to publish; one whose metric is not finite is never chosen, and logged.

    :raises CheckpointError: if nothing decides, or the metric is missing, or finite for no candidate.
    """
    candidates = list(aggregated["candidates"])
    if evaluation is None:
        if aggregated["chosen"] is None:
            raise CheckpointError(
                "no candidate is chosen",
                f"method {aggregated['method']!r} leaves it to an evaluation",
                "Add an evaluate section with a metric.",
            )
        return str(aggregated["chosen"])
    scores = _scores(aggregated, evaluation)
    metric = metric or _only_metric(scores)
    missing = [name for name, values in scores.items() if metric not in values]
    if missing:
        raise CheckpointError(f"the evaluation has no metric {metric!r} for {', '.join(missing)}")
    values = {name: scores[name][metric] for name in candidates}
    finite = {name: float(value) for name, value in values.items() if value is not None and math.isfinite(float(value))}
    if not finite:
        why = f"{metric!r} is finite for none of {', '.join(candidates)}"
        raise CheckpointError("no candidate can be chosen by the evaluation", why, "Look why the replicas diverged.")
    for name in candidates:
        if name not in finite:
            log.warning("%s is not chosen: its %s is not finite", name, metric)
    sign = 1.0 if mode == "min" else -1.0
    # The aggregate comes first: it is taken unless it is worse than the best replica.
    order = sorted(finite, key=lambda name: name != aggregated["chosen"])
    return str(min(order, key=lambda name: sign * finite[name]))


def deciding_metric(
    aggregated: Mapping[str, Any], evaluation: Mapping[str, Any] | None, metric: str | None
) -> str | None:
    """Return the metric by which :func:`choose` decides: where none is named, the only one of the evaluation."""
    return metric if metric or evaluation is None else _only_metric(_scores(aggregated, evaluation))


def _scores(aggregated: Mapping[str, Any], evaluation: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    return {name: evaluation["candidates"].get(name, {}) for name in aggregated["candidates"]}


def _only_metric(scores: Mapping[str, Mapping[str, float | None]]) -> str:
    names = sorted({metric for values in scores.values() for metric in values})
    if len(names) != 1:
        raise CheckpointError(
            "it is not clear which metric decides",
            f"the evaluation gave: {', '.join(names) or 'none'}",
            "Name one by evaluate.metric.",
        )
    return names[0]


def collect(prefix: str, folder: Path, saved_model: Path | None = None) -> Path:
    """Link the files of one checkpoint into a fresh folder under the name :data:`MODEL`, with TensorFlow's state file.

    :param saved_model: an export of it, linked below ``saved_model``.
    :raises CheckpointError: if one of them is gone.
    """
    fresh_folder(folder)
    source = Path(prefix)
    files = [
        path
        for path in source.parent.glob("*")
        if path.name.startswith((f"{source.name}.index", f"{source.name}.data-"))
    ]
    if not files:
        raise CheckpointError(f"checkpoint {prefix} is gone", todo="Clear the training task to train again.")
    for path in files:
        (folder / f"{MODEL}{path.name[len(source.name) :]}").hardlink_to(path)
    (folder / "checkpoint").write_text('model_checkpoint_path: "model"\nall_model_checkpoint_paths: "model"\n')
    if saved_model is not None:
        if not saved_model.is_dir():
            raise CheckpointError(f"export {saved_model} is gone", todo="Clear the export task to make it again.")
        shutil.copytree(saved_model, folder / SAVED_MODEL, copy_function=os.link)
    return folder


def describe(folder: Path, written: Mapping[str, int] | None = None) -> dict[str, dict[str, int]]:
    """Return name -> size in bytes and CRC32C of every file below ``folder``.

    :param written: those of the checkpoint's data when it was made, where they are known: whoever publishes then finds
        out that a disk has lost some of it since.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in files]
    known = {DATA: dict(written)} if written else {}
    return {
        name: known.get(name) or {"size": path.stat().st_size, "crc32c": checksum(path, lambda: None)}
        for name, path in zip(names, files, strict=True)
    }
