"""Aggregate the replicas' checkpoints, and publish the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

from airflow.sdk import Asset, BaseOperator, Context

from airflow_tf.core.checkpoint.average import NotFinite, Optimizer
from airflow_tf.core.checkpoint.methods import AVERAGE, CHIEF, EMA, METHODS, SOUP, TOP_K
from airflow_tf.core.cluster import GANG_STRATEGIES
from airflow_tf.core.errors import AirflowTfError, CheckpointError, DeclarationError, PublishError, StorageError
from airflow_tf.core.identity import RunFolders
from airflow_tf.core.ledger import ReplicaRecord
from airflow_tf.core.manifest import PublishManifest
from airflow_tf.core.retention import Keep
from airflow_tf.core.settings import Settings
from airflow_tf.core.verdict import ALL, LEAD, parse_success
from airflow_tf.hooks.airflow_run import TaskRun
from airflow_tf.hooks.carrying import forget
from airflow_tf.hooks.code import program_folder
from airflow_tf.hooks.hdfs import HdfsHook
from airflow_tf.hooks.links import HdfsBrowserLink
from airflow_tf.hooks.mapping import argument_of
from airflow_tf.hooks.settings import load_settings
from airflow_tf.hooks.staging import ensure_all_staged
from airflow_tf.hooks.telemetry import measured
from airflow_tf.ledger import open_ledger
from airflow_tf.operators import origin
from airflow_tf.operators.aggregation import Aggregation, Choices, same_start
from airflow_tf.operators.candidates import (
    SAVED_MODEL,
    choose,
    collect,
    deciding_metric,
    describe,
    fresh_folder,
    pull,
    result_digest,
    version_name,
)
from airflow_tf.operators.gang import airflow_errors
from airflow_tf.operators.local_program import LocalProgram
from airflow_tf.operators.sending import Sending
from airflow_tf.operators.settled import replica_checkpoints, settle_task
from airflow_tf.operators.soup import LocalEvaluation
from airflow_tf.storage.client import prune_versions, publish


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
    :param destination: base URI under which the result is published if no evaluation chooses another: an average is on
        its way there while it is made.
    :return: XCom ``{"candidates": {name: prefix}, "chosen": name | None, "method": …, "fence": …, "same_start": …}``.
    """

    template_fields: Sequence[str] = ("method", "evaluate", "destination", "hdfs_conn_id")
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
        destination: str | None = None,
        hdfs_conn_id: str | None = None,
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
        self.destination = destination
        self.hdfs_conn_id = hdfs_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Collect the durable results of the current generation and aggregate them."""
        with measured("aggregate", context) as step, airflow_errors():
            dag = context["dag"]
            strategy = argument_of(dag, self.from_task, "strategy", "independent")
            self._check_method(strategy)
            run, settings = TaskRun.from_context(context), load_settings()
            settled = settle_task(context, settings, self.from_task, self.log)
            records, marked = settled.records, settled.states
            replicas = sorted(marked)
            success = parse_success(argument_of(dag, self.from_task, "success", ALL), len(marked))
            if strategy in GANG_STRATEGIES:  # the first replica of a gang has succeeded only if the gang has
                replicas, success = [LEAD], (ALL, 0)
            found = replica_checkpoints(settled.key, records, replicas, marked, self.log, success)
            folder = fresh_folder(run.folders(settings).aggregate(self.task_id))
            evaluation = self._evaluation(dag, run.folders(settings), settings)
            fence = max(record.fence for record in records.values())
            same = _is_warm(dag, self.from_task) or same_start(list(found.values()))
            with self._sending(context, run, fence, same) as sending:
                aggregation = Aggregation(self._choices(), folder, evaluation, sending.begin if sending else None)
                candidates, chosen = aggregation.run(found, _metrics(records))
            step.tell(method=self.method, replicas=len(found))
            self._tell(aggregation, chosen)
            return {
                "candidates": candidates,
                "chosen": chosen,
                "method": self.method,
                "train_task": self.from_task,
                "fence": fence,
                "metrics": {name: row for name, row in _metrics(records).items() if name in found},
                "reports": aggregation.reports,
                "same_start": same,
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

    def _evaluation(self, dag: Any, folders: RunFolders, settings: Settings) -> LocalEvaluation | None:  # noqa: ANN401 (Airflow exports no class for parsed DAGs)
        if self.evaluate is None or self.method != SOUP:
            return None
        declared = self.evaluate.get("inputs", {})
        staged = ensure_all_staged(declared, folders=folders, settings=settings, log=self.log)
        inputs = {name: each.folder for name, each in staged.items()}
        code = self.evaluate.get("code")
        given = {name: value for name, value in self.evaluate.items() if name != "code"} | {"inputs": inputs}
        base = program_folder(code, dag, lambda: folders, self.log)
        program = LocalProgram(name="evaluation", dag_folder=base, is_code=code is not None, **given)
        return LocalEvaluation(program, folders.aggregate(self.task_id) / "evaluations")

    def _sending(
        self,
        context: Context,
        run: TaskRun,
        fence: int,
        same: bool | None,  # noqa: FBT001 (None: unknown)
    ) -> AbstractContextManager[Sending | None]:
        """Return what sends an average ahead, where the publisher is sure to take it."""
        if self.destination is None or same is False:
            return nullcontext()
        uri = f"{self.destination.rstrip('/')}/{version_name(context['dag_run'].run_after, run)}"
        return Sending(uri, HdfsHook(self.hdfs_conn_id).storage_options(self.destination), fence, self.log.info)

    def _tell(self, aggregation: Aggregation, chosen: str | None) -> None:
        for name, report in aggregation.reports.items():
            self.log.info("made %s of %s checkpoints", name, len(report["weights"]))
            for note in report["notes"]:
                self.log.info("%s: %s", name, note)
            for prefix, reason in report["left_out"].items():
                self.log.warning("%s was made without %s: %s", name, prefix, reason)
        self.log.info("chosen: %s", chosen or "left to the evaluation")


def _metrics(records: Mapping[int, ReplicaRecord]) -> dict[str, dict[str, Any]]:
    """Return what each replica last reported."""
    return {f"replica-{number}": record.outcome.metrics for number, record in records.items() if record.outcome}


def _is_warm(dag: Any, task_id: str) -> bool | None:  # noqa: ANN401 (Airflow exports no class for parsed DAGs)
    """Tell whether all replicas began with one checkpoint, None where that is not known."""
    initial = argument_of(dag, task_id, "initial_checkpoint", None)
    return True if initial and not argument_of(dag, task_id, "allow_from_scratch", None) else None


class CheckpointPublishOperator(BaseOperator):
    """Publish one candidate atomically below a base: ``<destination>/v=<UTC>-<hash>`` with manifest and ``_SUCCESS``.

    With an evaluation, the candidate with the best metric is taken: an average is published only where it is not
    worse than the best replica.

    :param from_task: task id of the aggregation.
    :param evaluation_task: task id of the evaluation, if any.
    :param export_task: task id of the export, if any; its SavedModel is published with the checkpoint.
    :param metric: name of the metric that decides; by default the only one.
    :param mode: ``min`` or ``max``.
    :param destination: base URI, the same for all runs.
    :param keep: rules of :class:`airflow_tf.core.retention.Keep` but ``mode``; versions that none keeps are removed.
    :return: XCom ``{"uri", "digest", "candidate", "metrics", "baselines", "step"}``.
    """

    template_fields: Sequence[str] = ("destination", "hdfs_conn_id")
    operator_extra_links = (HdfsBrowserLink("destination"),)
    ui_color = "#58a4b0"

    def __init__(
        self,
        *,
        destination: str,
        from_task: str = "aggregate_checkpoints",
        evaluation_task: str | None = None,
        export_task: str | None = None,
        metric: str | None = None,
        mode: str = "min",
        hdfs_conn_id: str | None = None,
        keep: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.keep = keep
        self.destination = destination
        self.from_task = from_task
        self.evaluation_task = evaluation_task
        self.export_task = export_task
        self.metric = metric
        self.mode = mode
        self.hdfs_conn_id = hdfs_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Choose, collect the files, publish."""
        with measured("publish", context) as telemetry, airflow_errors():
            ti = context["ti"]
            rules = None if self.keep is None else Keep(mode=self.mode, **self.keep)
            aggregated, evaluation = pull(ti, self.from_task, self.evaluation_task)
            name = choose(aggregated, evaluation, self.metric, self.mode)
            if evaluation is None and name in {AVERAGE, TOP_K}:
                self._check_start(name, aggregated.get("same_start"))
            run, settings = TaskRun.from_context(context), load_settings()
            prefix = aggregated["candidates"][name]
            exported = self._exported(ti, name)
            saved_model = Path(exported["folder"]) if exported else None
            local = collect(prefix, run.folders(settings).root / f"{self.task_id}--model", saved_model)
            metrics = (evaluation or {}).get("candidates", {}).get(name, {})
            manifest = self._manifest(context, run, settings, aggregated, name, metrics, evaluation or {}, local)
            if exported:
                manifest.origin["signatures"] = exported["signatures"]
            version = version_name(context["dag_run"].run_after, run)
            uri = publish(
                local,
                f"{self.destination.rstrip('/')}/{version}",
                options=HdfsHook(self.hdfs_conn_id).storage_options(self.destination),
                manifest=manifest,
                on_progress=self.log.info,
                confirm=lambda: self._check_fence(run, settings, aggregated),
            )
            self.log.info("published %s (%s %s)", uri, name, metrics)
            step = manifest.origin["step"]
            finite = {f"metric.{each}": value for each, value in metrics.items() if value is not None}
            telemetry.tell(uri=uri, step=step, **finite)
            event = {"uri": uri, "step": step, "metrics": metrics, "digest": manifest.digest}
            self._announce(context, event | ({"saved_model": f"{uri}/{SAVED_MODEL}"} if exported else {}))
            self._apply_retention(rules, deciding_metric(aggregated, evaluation, self.metric))
            self._forget_copies(context["dag"], run, aggregated.get("train_task", "train"))
            return {
                "uri": uri,
                "digest": manifest.digest,
                "candidate": name,
                "metrics": metrics,
                "baselines": (evaluation or {}).get("baselines", {}),
                "step": step,
            }

    def _exported(self, ti: Any, name: str) -> dict[str, Any] | None:  # noqa: ANN401 (Airflow's own)
        """Return what the export task made of the candidate ``name``, None where nothing is exported."""
        if self.export_task is None:
            return None
        exported: dict[str, Any] | None = ti.xcom_pull(task_ids=self.export_task)
        if not exported or exported["candidate"] != name:
            why = f"it was made of {exported['candidate']}, and {name} is published" if exported else "it left nothing"
            raise CheckpointError(f"task {self.export_task!r} has no export for this run", why, "Clear it.")
        return exported

    def _manifest(
        self,
        context: Context,
        run: TaskRun,
        settings: Settings,
        aggregated: Mapping[str, Any],
        name: str,
        metrics: dict[str, Any],
        evaluation: dict[str, Any],
        local: Path,
    ) -> PublishManifest:
        dag, files = context["dag"], describe(local, aggregated.get("reports", {}).get(name, {}).get("data"))
        task_id = aggregated.get("train_task", "train")
        bundle_version = getattr(context["dag_run"], "bundle_version", None)
        given = {name: argument_of(dag, task_id, name, None) for name in ("entrypoint", "code", "inputs")}
        code = self.render_template(given["code"], context)
        return PublishManifest(
            fence=int(aggregated["fence"]),
            digest=result_digest(run, name, files, evaluation),
            files=files,
            edition=run.try_number,
            metrics=metrics,
            origin={
                "dag_id": run.dag_id,
                "run_id": run.run_id,
                "candidate": name,
                "evaluation": evaluation,
                "step": origin.published_step(str(local / "model")),
                "aggregation": origin.aggregation(aggregated, name),
                "inputs": origin.staged_inputs(run.folders(settings), task_id, given["inputs"] or {}),
                "session_config": argument_of(dag, task_id, "session_config", {}),
                "code": origin.code(given["entrypoint"], code, dag, run.folders(settings), bundle_version),
                "packages": origin.packages(),
            },
        )

    def _check_fence(self, run: TaskRun, settings: Settings, aggregated: Mapping[str, Any]) -> None:
        """Refuse to publish what a newer attempt of the training has made obsolete."""
        ledger = open_ledger(settings)
        records = ledger.replicas(run.gang(ledger.ledger_id, aggregated.get("train_task", "train")))
        newest = max((record.fence for record in records.values()), default=0)
        if newest > int(aggregated["fence"]):
            raise PublishError(
                "nothing was published",
                f"the training has begun anew: its fence is {newest}, this result has {aggregated['fence']}",
                "The new attempt's tasks will publish its result.",
            )

    def _announce(self, context: Context, extra: dict[str, Any]) -> None:
        """Say to those who wait for the asset what was published."""
        for outlet in self.outlets or ():
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra = extra

    def _apply_retention(self, rules: Keep | None, metric: str | None) -> None:
        """Remove old versions; what cannot be removed now stays for the next run: the result is published."""
        if rules is None:
            return
        try:
            rows = prune_versions(
                self.destination,
                options=HdfsHook(self.hdfs_conn_id).storage_options(self.destination),
                keep=rules,
                metric=metric,
                on_progress=self.log.info,
            )
        except AirflowTfError as error:
            self.log.warning("old versions were not removed: %s", error)
            return
        for row in rows:
            if row["result"] != "kept":
                self.log.info("%s: %s", row["version"], row["result"])

    def _forget_copies(self, dag: Any, run: TaskRun, train_task: str) -> None:  # noqa: ANN401 (Airflow exports no class for parsed DAGs)
        """Remove what was copied while the training went on; what cannot be removed now stays."""
        upload = argument_of(dag, train_task, "upload", None)
        if upload is None:
            return
        try:
            forget({**upload, "destination": self.destination}, run, train_task)
        except StorageError as error:
            self.log.warning("the copies of this run's checkpoints were not removed: %s", error)

    def _check_start(self, name: str, same: bool | None) -> None:  # noqa: FBT001 (None: unknown)
        """Refuse an average of replicas that did not begin with the same weights, unless an evaluation judges it."""
        if same is False:
            raise CheckpointError(
                f"{name} is not published",
                "the replicas began with different weights, or have none in common now, and no evaluation shows that"
                " their average is any good",
                "Begin with the same weights (a seed, or initial_checkpoint), or add an evaluate section.",
            )
        if same is None:
            self.log.warning("Nothing shows that %s is no worse than a replica: add an evaluate section.", name)
