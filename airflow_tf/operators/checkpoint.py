"""Aggregate the replicas' checkpoints, and publish the result."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
from airflow.sdk import BaseOperator, Context

from airflow_tf.core.checkpoint.average import average
from airflow_tf.core.cluster import CHIEF, GANG_STRATEGIES
from airflow_tf.core.errors import AirflowTfError, CheckpointError, DeclarationError
from airflow_tf.core.identity import RunFolders, digest
from airflow_tf.core.manifest import PublishManifest
from airflow_tf.core.units import parse_seconds
from airflow_tf.core.verdict import ALL, LEAD, parse_success
from airflow_tf.hooks.airflow_run import TaskRun, task_states
from airflow_tf.hooks.hdfs import HdfsHook
from airflow_tf.hooks.mapping import instance_names
from airflow_tf.hooks.settings import load_settings
from airflow_tf.ledger import open_ledger
from airflow_tf.operators.gang import airflow_errors
from airflow_tf.operators.settled import MARGIN_SECONDS, replica_checkpoints, settled_records
from airflow_tf.storage.client import publish

AVERAGE = "average"
METHODS = (AVERAGE, "best", CHIEF)
_CHUNK_BYTES = 4 * 2**20
_DEFAULT_GRACE_SECONDS = 30.0
_LONG_GRACE_SECONDS = 300.0


class CheckpointAggregateOperator(BaseOperator):
    """Turn the checkpoints of a gang's replicas into candidates for publication.

    :param from_task: task id of the training task.
    :param method: ``average`` adds the mean of all replicas; ``best`` leaves the choice to an evaluation; ``chief``,
        the only one for gangs (``sync``, ``async``, ``v1_cluster``), takes the checkpoint of their first replica.
    :return: XCom ``{"candidates": {name: prefix}, "chosen": name | None, "method": …, "fence": …}``.
    """

    template_fields: Sequence[str] = ("method",)
    ui_color = "#9dd866"

    def __init__(self, *, from_task: str = "train", method: str = AVERAGE, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.from_task = from_task
        self.method = method

    def execute(self, context: Context) -> dict[str, Any]:
        """Collect the durable results of the current generation and aggregate them."""
        with airflow_errors():
            dag = context["dag"]
            strategy = _argument(dag, self.from_task, "strategy", "independent")
            self._check_method(strategy)
            run, settings = TaskRun.from_context(context), load_settings()
            ledger = open_ledger(settings)
            key = run.gang(ledger.ledger_id, self.from_task)
            records = settled_records(
                ledger,
                key,
                run.folders(settings).gang(key),
                deadline_seconds=_kill_grace_seconds(dag, self.from_task) + MARGIN_SECONDS,
                log=self.log,
            )
            states = task_states(run.dag_id, run.run_id, self.from_task)
            marked = {number: states.get(name) or "" for number, name in instance_names(dag, self.from_task).items()}
            replicas, success = (
                sorted(marked),
                parse_success(_argument(dag, self.from_task, "success", ALL), len(marked)),
            )
            if self.method == CHIEF:  # the first replica of a gang has succeeded only if the gang has
                replicas, success = [LEAD], (ALL, 0)
            candidates = replica_checkpoints(key, records, replicas, marked, self.log, success)
            chosen = next(iter(candidates)) if len(candidates) == 1 else None
            if self.method == AVERAGE and chosen is None:
                candidates[AVERAGE] = self._average(list(candidates.values()), run.folders(settings))
                chosen = AVERAGE
            return {
                "candidates": candidates,
                "chosen": chosen,
                "method": self.method,
                "fence": max(record.fence for record in records.values()),
            }

    def _check_method(self, strategy: str) -> None:
        todo = f"Use one of: {', '.join(METHODS)}."
        if self.method not in METHODS:
            raise DeclarationError(f"aggregation {self.method!r} is unknown", todo=todo)
        if (self.method == CHIEF) != (strategy in GANG_STRATEGIES):
            why = "a gang has one model, which its chief saves; independent replicas have no chief"
            raise DeclarationError(f"aggregation {self.method!r} does not fit strategy {strategy}", why, todo)

    def _average(self, prefixes: Sequence[str], folders: RunFolders) -> str:
        """Average into a fresh folder of this run; a half-written one of a killed try is removed first."""
        folder = folders.aggregate(self.task_id)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        destination = folder / "average"
        report = average(prefixes, str(destination))
        (folder / "report.json").write_text(json.dumps(report.to_json(), indent=1, sort_keys=True))
        self.log.info("averaged %s checkpoints into %s", len(prefixes), destination)
        return str(destination)


def _argument(dag: Any, task_id: str, name: str, default: Any) -> Any:  # noqa: ANN401 (Airflow exports no class for parsed DAGs)
    """Return an argument of a training task, as it was given."""
    task = dag.get_task(task_id)
    given = task.partial_kwargs.get(name) if task.is_mapped else getattr(task, name, None)
    return default if given is None else given


def _kill_grace_seconds(dag: Any, task_id: str) -> float:  # noqa: ANN401 (Airflow exports no class for parsed DAGs)
    """Return the kill grace of a training task; where it is a template, a long one."""
    try:
        return parse_seconds(_argument(dag, task_id, "kill_grace_seconds", _DEFAULT_GRACE_SECONDS))
    except AirflowTfError:
        return _LONG_GRACE_SECONDS


class CheckpointPublishOperator(BaseOperator):
    """Publish one candidate atomically below a base: ``<destination>/v=<UTC>-<hash>`` with manifest and ``_SUCCESS``.

    With an evaluation, the candidate with the best metric is taken: an average is published only where it is not
    worse than the best replica.

    :param from_task: task id of the aggregation.
    :param evaluation_task: task id of the evaluation, if any.
    :param metric: name of the metric that decides; by default the only one.
    :param mode: ``min`` or ``max``.
    :param destination: base URI, the same for all runs.
    :return: XCom ``{"uri", "candidate", "metrics", "baselines"}``.
    """

    template_fields: Sequence[str] = ("destination", "hdfs_conn_id")
    ui_color = "#58a4b0"

    def __init__(
        self,
        *,
        destination: str,
        from_task: str = "aggregate_checkpoints",
        evaluation_task: str | None = None,
        metric: str | None = None,
        mode: str = "min",
        hdfs_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destination = destination
        self.from_task = from_task
        self.evaluation_task = evaluation_task
        self.metric = metric
        self.mode = mode
        self.hdfs_conn_id = hdfs_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Choose, collect the files, publish."""
        with airflow_errors():
            ti = context["ti"]
            aggregated = ti.xcom_pull(task_ids=self.from_task)
            if not aggregated:
                raise CheckpointError(f"task {self.from_task!r} left no candidates in this run")
            evaluation = ti.xcom_pull(task_ids=self.evaluation_task) if self.evaluation_task else None
            name = choose(aggregated, evaluation, self.metric, self.mode)
            if evaluation is None and name == AVERAGE:
                self.log.warning("Nothing shows that the average is no worse than a replica: there is no evaluation.")
            run, settings = TaskRun.from_context(context), load_settings()
            local = collect(aggregated["candidates"][name], run.folders(settings).root / f"{self.task_id}--model")
            files = describe(local)
            metrics = (evaluation or {}).get("candidates", {}).get(name, {})
            manifest = PublishManifest(
                fence=int(aggregated["fence"]),
                digest=digest(run.dag_id, run.run_id, json.dumps(files, sort_keys=True)),
                files=files,
                metrics=metrics,
                origin={"dag_id": run.dag_id, "run_id": run.run_id, "candidate": name, "evaluation": evaluation or {}},
            )
            version = version_name(context["dag_run"].run_after, run)
            uri = publish(
                local,
                f"{self.destination.rstrip('/')}/{version}",
                options=HdfsHook(self.hdfs_conn_id).storage_options(self.destination),
                manifest=manifest,
                on_progress=self.log.info,
            )
            self.log.info("published %s (%s %s)", uri, name, metrics)
            return {
                "uri": uri,
                "candidate": name,
                "metrics": metrics,
                "baselines": (evaluation or {}).get("baselines", {}),
            }


def version_name(run_after: dt.datetime, run: TaskRun) -> str:
    """Return ``v=<UTC>-<hash>``: the same for every try of a run, sortable, without ``:`` (HDFS refuses it)."""
    stamp = run_after.astimezone(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"v={stamp}-{digest(run.dag_id, run.run_id, length=8)}"


def choose(aggregated: Mapping[str, Any], evaluation: Mapping[str, Any] | None, metric: str | None, mode: str) -> str:
    """Return the name of the candidate to publish.

    :raises CheckpointError: if nothing decides, or the metric is missing.
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
    scores = {name: evaluation["candidates"].get(name, {}) for name in candidates}
    metric = metric or _only_metric(scores)
    missing = [name for name, values in scores.items() if metric not in values]
    if missing:
        raise CheckpointError(f"the evaluation has no metric {metric!r} for {', '.join(missing)}")
    sign = 1.0 if mode == "min" else -1.0
    # The aggregate comes first: it is taken unless it is worse than the best replica.
    order = sorted(candidates, key=lambda name: name != aggregated["chosen"])
    return str(min(order, key=lambda name: sign * float(scores[name][metric])))


def _only_metric(scores: Mapping[str, Mapping[str, float]]) -> str:
    names = sorted({metric for values in scores.values() for metric in values})
    if len(names) != 1:
        raise CheckpointError(
            "it is not clear which metric decides",
            f"the evaluation gave: {', '.join(names) or 'none'}",
            "Name one by evaluate.metric.",
        )
    return names[0]


def collect(prefix: str, folder: Path) -> Path:
    """Link the files of one checkpoint into a fresh folder under the name ``model``, with TensorFlow's state file."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    source = Path(prefix)
    files = [
        path
        for path in source.parent.glob("*")
        if path.name.startswith((f"{source.name}.index", f"{source.name}.data-"))
    ]
    if not files:
        raise CheckpointError(f"checkpoint {prefix} is gone", todo="Clear the training task to train again.")
    for path in files:
        (folder / f"model{path.name[len(source.name) :]}").hardlink_to(path)
    (folder / "checkpoint").write_text('model_checkpoint_path: "model"\nall_model_checkpoint_paths: "model"\n')
    return folder


def describe(folder: Path) -> dict[str, dict[str, int]]:
    """Return name -> size in bytes and CRC32C of every file in ``folder``."""
    found: dict[str, dict[str, int]] = {}
    for path in sorted(folder.iterdir()):
        checksum, size = 0, 0
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                checksum, size = google_crc32c.extend(checksum, chunk), size + len(chunk)
        found[path.name] = {"size": size, "crc32c": checksum}
    return found
