"""A sweep: trials of one program with different arguments, each on devices of its own, and the choice of the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from airflow.sdk import BaseOperator, Context

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.launch import Plan, ReplicaLaunch
from airflow_tf.core.ledger import Outcome, ReplicaRecord
from airflow_tf.core.session_config import ConfigContext
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.core.sweep import MedianRule, Trial, best_trial, ranked_trials, trial_name
from airflow_tf.core.verdict import ALL, parse_success
from airflow_tf.hooks.mapping import argument_of
from airflow_tf.hooks.settings import load_settings
from airflow_tf.hooks.telemetry import measured
from airflow_tf.operators.gang import airflow_errors
from airflow_tf.operators.settled import replica_checkpoints, settle_task
from airflow_tf.operators.train import TensorFlowTrainOperator

INDEPENDENT = "independent"


class TensorFlowTrialOperator(TensorFlowTrainOperator):
    """Train one trial of a sweep: a replica with arguments of its own, which takes its turn for devices.

    Map it over the numbers of the trials: ``.partial(trials=[…], …).expand(replica=[0, 1, 2])``. Each trial waits and
    holds devices for itself alone: where there are fewer than trials need, they take turns in the order of the queue.

    :param trials: the arguments of each trial, laid over ``arguments``; ``{{ replica.index }}`` is its number.
    :param metric: name of the metric, as the program reports it, by which trials are compared.
    :param mode: ``min`` or ``max``: whether a smaller or a larger value is better.
    :param stop_early: ``{"min_steps": n, "min_trials": m}``: a trial ends, as a success, when at a step not before
        ``min_steps`` its metric is worse than the median of at least ``min_trials`` other trials of this host at that
        step. By default none is stopped.
    :param device_timeout: how long a trial may wait for its turn.
    :return: XCom of :class:`TensorFlowTrainOperator`, with ``trial`` (its arguments) and ``stopped_early`` (why, or
        None).
    """

    template_fields: Sequence[str] = (*TensorFlowTrainOperator.template_fields, "trials")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **TensorFlowTrainOperator.template_fields_renderers,
        "trials": "json",
    }

    def __init__(
        self,
        *,
        trials: Sequence[Mapping[str, Any]],
        metric: str | None = None,
        mode: Literal["min", "max"] = "min",
        stop_early: Mapping[str, int] | None = None,
        device_timeout: str | float = "7d",
        **kwargs: Any,
    ) -> None:
        super().__init__(device_timeout=device_timeout, **kwargs)
        self.trials = trials
        self.metric = metric
        self.mode = mode
        self.stop_early = stop_early
        self._is_stopped_early = False

    @property
    def trial_name(self) -> str:
        """What ``map_index_template`` shows of the trial: its arguments, and whether it was stopped early."""
        name = trial_name(self.trials[self.replica])
        return f"{name} (stopped early)" if self._is_stopped_early else name

    def _count(self, context: Mapping[str, Any]) -> int:  # noqa: ARG002 (the trials are given)
        return len(self.trials)

    def _plan(self, context: Context) -> Plan:
        plan = super()._plan(context)
        if plan.strategy != INDEPENDENT:
            why = "a trial is one process on its own devices"
            todo = "Remove strategy; give a trial several devices by per_replica."
            raise DeclarationError(f"strategy {plan.strategy} does not fit a sweep", why, todo)
        if self.stop_early is None:
            return plan
        if self.metric is None:
            raise DeclarationError("stop_early needs a metric", todo="Name the one that the program reports.")
        rule = MedianRule(self.metric, self.mode, **self.stop_early)
        return dataclasses.replace(plan, early_stop=dataclasses.asdict(rule))

    def _launch(self, context: Context, devices: ConfigContext, replica: int) -> ReplicaLaunch:
        self.log.info("trial %s of %s: %s", replica, len(self.trials), trial_name(self.trials[replica]))
        launch = super()._launch(context, devices, replica)
        own = {key: str(value) for key, value in self.trials[replica].items()}
        return dataclasses.replace(launch, arguments=launch.arguments | own)

    def _result(self, context: Context, folder: Path, outcome: Outcome, devices: list[str]) -> dict[str, Any]:
        found = super()._result(context, folder, outcome, devices)
        self._is_stopped_early = outcome.cause is ExitCause.STOPPED_EARLY
        if self._is_stopped_early:
            self.log.info("trial %s (%s): %s", self.replica, trial_name(self.trials[self.replica]), outcome.message)
        return {
            **found,
            "trial": dict(self.trials[self.replica]),
            "stopped_early": outcome.message if self._is_stopped_early else None,
        }


class SweepBestOperator(BaseOperator):
    """Choose the best trial of a sweep: the only candidate for evaluation, export and publication.

    The trials that went to their end are ranked by the last value that they reported; one that was stopped early is
    taken only where none of those has a value. How many trials must succeed is said by ``success`` of the trials' task.

    :param from_task: task id of the trials.
    :param metric: by which they are ranked; by default that of the trials' task. ``mode`` likewise.
    :return: XCom of :class:`airflow_tf.operators.checkpoint.CheckpointAggregateOperator`, with ``trials``: one row for
        each, the best first.
    """

    ui_color = "#9dd866"

    def __init__(
        self,
        *,
        from_task: str = "train",
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.from_task = from_task
        self.metric = metric
        self.mode = mode

    def execute(self, context: Context) -> dict[str, Any]:
        """Collect what the trials have left, tell it, choose."""
        with measured("aggregate", context), airflow_errors():
            dag = context["dag"]
            metric = self.metric or argument_of(dag, self.from_task, "metric", None)
            mode = self.mode or argument_of(dag, self.from_task, "mode", "min")
            if metric is None:
                raise DeclarationError(f"task {self.task_id} has no metric", todo="Name the one that ranks the trials.")
            settled = settle_task(context, load_settings(), self.from_task, self.log)
            success = parse_success(argument_of(dag, self.from_task, "success", ALL), len(settled.states))
            left = with_checkpoints(settled.records)
            found = replica_checkpoints(settled.key, left, sorted(settled.states), settled.states, self.log, success)
            given = self._arguments(context)
            rows = trial_rows(settled.records, given, metric, mode)
            for row in rows:
                self.log.info("trial %s", _shown(row, metric))
            usable = [_trial(number, left[number].outcome, metric) for number in left if found.get(f"replica-{number}")]
            best = best_trial(usable, metric, mode)
            name = f"trial-{best.number}"
            self.log.info("best: trial %s (%s), %s %g", best.number, trial_name(given[best.number]), metric, best.value)
            return {
                "candidates": {name: found[f"replica-{best.number}"]},
                "chosen": name,
                "method": "best",
                "train_task": self.from_task,
                "fence": max(record.fence for record in settled.records.values()),
                "metrics": {name: left[best.number].outcome.metrics},  # type: ignore[union-attr]  # it has succeeded
                "reports": {name: {"trial": given[best.number], "trials": rows}},
                "same_start": None,
                "trials": rows,
            }

    def _arguments(self, context: Context) -> list[dict[str, Any]]:
        """Return the arguments of every trial: rendered where its task has come to an end, else as they were given."""
        given = [dict(trial) for trial in argument_of(context["dag"], self.from_task, "trials", [])]
        pulled = context["ti"].xcom_pull(task_ids=self.from_task)
        for row in pulled if isinstance(pulled, list) else [pulled]:
            if row is not None:
                given[row["replica"]] = row["trial"]
        return given


def with_checkpoints(records: Mapping[int, ReplicaRecord]) -> dict[int, ReplicaRecord]:
    """Return the records; a trial that was stopped before its first checkpoint counts, with none."""
    return {
        number: dataclasses.replace(record, outcome=dataclasses.replace(record.outcome, checkpoint=""))
        if record.outcome is not None and _is_stopped_early(record.outcome) and record.outcome.checkpoint is None
        else record
        for number, record in records.items()
    }


def trial_rows(
    records: Mapping[int, ReplicaRecord], trials: Sequence[Mapping[str, Any]], metric: str, mode: str
) -> list[dict[str, Any]]:
    """Return a row for each trial: number, arguments, state, value, step, and why it ended so.

    The best comes first, those that have not succeeded last.
    """
    ended = {number: record.outcome for number, record in records.items() if record.outcome is not None}
    good = [number for number, outcome in ended.items() if outcome.state is AttemptState.SUCCEEDED]
    order = [trial.number for trial in ranked_trials([_trial(n, ended[n], metric) for n in good], mode)]
    order += [number for number in range(len(trials)) if number not in good]
    return [_row(number, ended.get(number), trials[number], metric) for number in order]


def _trial(number: int, outcome: Outcome | None, metric: str) -> Trial:
    value = None if outcome is None else outcome.metrics.get(metric)
    return Trial(number, value, outcome.message if outcome is not None and _is_stopped_early(outcome) else "")


def _is_stopped_early(outcome: Outcome) -> bool:
    return outcome.cause is ExitCause.STOPPED_EARLY


def _row(number: int, outcome: Outcome | None, arguments: Mapping[str, Any], metric: str) -> dict[str, Any]:
    row = {"trial": number, "arguments": dict(arguments), "state": "no result", "value": None, "step": None, "why": ""}
    if outcome is None:
        return row
    return row | {
        "state": "stopped early" if _is_stopped_early(outcome) else str(outcome.state),
        "value": outcome.metrics.get(metric),
        "step": outcome.metrics.get("step"),
        "why": outcome.message.partition("\n")[0],
    }


def _shown(row: Mapping[str, Any], metric: str) -> str:
    value = "no value" if row["value"] is None else f"{row['value']:g}"
    why = f" ({row['why']})" if row["why"] else ""
    return f"{row['trial']} ({trial_name(row['arguments'])}): {row['state']}, {metric} {value}{why}"
