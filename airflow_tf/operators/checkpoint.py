"""Aggregate the replicas' checkpoints, and publish the result."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import google_crc32c
from airflow.sdk import BaseOperator, Context

from airflow_tf.core.checkpoint.average import NotFinite, Optimizer
from airflow_tf.core.checkpoint.methods import AVERAGE, CHIEF, EMA, METHODS, SOUP, TOP_K
from airflow_tf.core.cluster import GANG_STRATEGIES
from airflow_tf.core.errors import AirflowTfError, CheckpointError, DeclarationError
from airflow_tf.core.identity import RunFolders, digest
from airflow_tf.core.ledger import ReplicaRecord
from airflow_tf.core.manifest import PublishManifest
from airflow_tf.core.settings import Settings
from airflow_tf.core.units import parse_seconds
from airflow_tf.core.verdict import ALL, LEAD, parse_success
from airflow_tf.hooks.airflow_run import TaskRun, task_states
from airflow_tf.hooks.hdfs import HdfsHook
from airflow_tf.hooks.mapping import instance_names
from airflow_tf.hooks.settings import load_settings
from airflow_tf.hooks.staging import ensure_staged
from airflow_tf.ledger import open_ledger
from airflow_tf.operators.aggregation import Aggregation, Choices, same_start
from airflow_tf.operators.gang import airflow_errors
from airflow_tf.operators.settled import MARGIN_SECONDS, replica_checkpoints, settled_records
from airflow_tf.operators.soup import LocalEvaluation
from airflow_tf.storage.client import publish

_CHUNK_BYTES = 4 * 2**20
_DEFAULT_GRACE_SECONDS = 30.0
_LONG_GRACE_SECONDS = 300.0


class CheckpointAggregateOperator(BaseOperator):
    """Turn the checkpoints of a gang's replicas into candidates for publication.

    :param from_task: task id of the training task.
    :param method: ``average`` adds the mean of all replicas; ``best`` chooses by ``metric``, or leaves the choice to
        an evaluation; ``latest`` takes the one with the largest step; ``top_k`` averages the ``top`` best by
        ``metric``; ``greedy_soup`` averages what improves the metric of ``evaluate``; ``ema`` is the moving average
        over each replica's ``last`` checkpoints; ``chief`` takes the checkpoint of a gang's first replica. Gangs
        (``sync``, ``async``, ``v1_cluster``) have ``chief`` and ``ema`` only.
    :param metric: name of the metric, as replicas report it, by which they are ranked; ``mode`` is ``min`` or ``max``.
    :param weights: name of a reported metric by which replicas count in the average, like a number of samples.
    :param not_finite: ``leave_out`` averages without replicas that have NaN or infinity.
    :param optimizer: ``drop`` leaves the optimizer's state out of averages.
    :param evaluate: entrypoint and arguments of the program that ``greedy_soup`` asks, on this host's CPU.
    :return: XCom ``{"candidates": {name: prefix}, "chosen": name | None, "method": …, "fence": …, "same_start": …}``.
    """

    template_fields: Sequence[str] = ("method", "evaluate")
    ui_color = "#9dd866"

    def __init__(  # noqa: PLR0913 (the declaration's checkpoints section, one argument per key)
        self,
        *,
        from_task: str = "train",
        method: str = AVERAGE,
        metric: str | None = None,
        mode: Literal["min", "max"] = "min",
        weights: str | None = None,
        top: int = 0,
        decay: float = 0.9,
        last: int = 0,
        not_finite: NotFinite = "refuse",
        optimizer: Optimizer = "average",
        evaluate: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.from_task = from_task
        self.method = method
        self.metric = metric
        self.mode = mode
        self.weights = weights
        self.top = top
        self.decay = decay
        self.last = last
        self.not_finite = not_finite
        self.optimizer = optimizer
        self.evaluate = evaluate

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
            if strategy in GANG_STRATEGIES:  # the first replica of a gang has succeeded only if the gang has
                replicas, success = [LEAD], (ALL, 0)
            found = replica_checkpoints(key, records, replicas, marked, self.log, success)
            folder = fresh_folder(run.folders(settings).aggregate(self.task_id))
            evaluation = self._evaluation(Path(dag.fileloc).parent, run.folders(settings), settings)
            aggregation = Aggregation(self._choices(), folder, evaluation)
            candidates, chosen = aggregation.run(found, _metrics(records))
            self._tell(aggregation, chosen)
            return {
                "candidates": candidates,
                "chosen": chosen,
                "method": self.method,
                "fence": max(record.fence for record in records.values()),
                "metrics": {name: row for name, row in _metrics(records).items() if name in found},
                "reports": aggregation.reports,
                "same_start": same_start(list(found.values())) if chosen in aggregation.reports else None,
            }

    def _check_method(self, strategy: str) -> None:
        todo = f"Use one of: {', '.join(METHODS)}."
        if self.method not in METHODS:
            raise DeclarationError(f"aggregation {self.method!r} is unknown", todo=todo)
        is_gang = strategy in GANG_STRATEGIES
        if self.method != EMA and (self.method == CHIEF) != is_gang:
            why = "a gang has one model, which its chief saves; independent replicas have no chief"
            raise DeclarationError(f"aggregation {self.method!r} does not fit strategy {strategy}", why, todo)

    def _choices(self) -> Choices:
        return Choices(
            method=self.method,
            metric=self.metric,
            mode=self.mode,
            weights=self.weights,
            top=self.top,
            decay=self.decay,
            last=self.last,
            not_finite=self.not_finite,
            optimizer=self.optimizer,
        )

    def _evaluation(self, dag_folder: Path, folders: RunFolders, settings: Settings) -> LocalEvaluation | None:
        if self.evaluate is None or self.method != SOUP:
            return None
        inputs = {
            name: ensure_staged(
                declared["source"],
                hdfs_conn_id=declared.get("hdfs_conn_id"),
                folders=folders,
                input_name=name,
                settings=settings,
                log=self.log,
            ).folder
            for name, declared in self.evaluate.get("inputs", {}).items()
        }
        folder = folders.aggregate(self.task_id) / "evaluations"
        return LocalEvaluation(dag_folder=dag_folder, folder=folder, **{**self.evaluate, "inputs": inputs})

    def _tell(self, aggregation: Aggregation, chosen: str | None) -> None:
        for name, report in aggregation.reports.items():
            self.log.info("made %s of %s checkpoints", name, len(report["weights"]))
            for note in report["notes"]:
                self.log.info("%s: %s", name, note)
            for prefix, reason in report["left_out"].items():
                self.log.warning("%s was made without %s: %s", name, prefix, reason)
        self.log.info("chosen: %s", chosen or "left to the evaluation")


def fresh_folder(folder: Path) -> Path:
    """Make an empty folder; what a killed try left in it is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    return folder


def _metrics(records: Mapping[int, ReplicaRecord]) -> dict[str, dict[str, Any]]:
    """Return what each replica last reported."""
    return {f"replica-{number}": record.outcome.metrics for number, record in records.items() if record.outcome}


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
            if evaluation is None and name in {AVERAGE, TOP_K}:
                self._check_start(name, aggregated.get("same_start"))
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

    def _check_start(self, name: str, same: bool | None) -> None:  # noqa: FBT001 (None: unknown)
        """Refuse an average of replicas that did not begin with the same weights, unless an evaluation judges it."""
        if same is False:
            raise CheckpointError(
                f"{name} is not published",
                "the replicas began with different weights, and no evaluation shows that their average is any good",
                "Begin with the same weights (a seed, or initial_checkpoint), or add an evaluate section.",
            )
        if same is None:
            self.log.warning("Nothing shows that %s is no worse than a replica: there is no evaluation.", name)


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
