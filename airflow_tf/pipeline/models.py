"""The declaration as frozen models: what may be written in a ``*.tf.yaml``, checked once, without behaviour.

Defaults that belong to an operator are not repeated here: a key that the file leaves out stays unset.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from airflow_tf.core.sweep import expand_grid
from airflow_tf.pipeline.called import check_callback, check_name
from airflow_tf.pipeline.dag_fields import ParamName, ParamValue, Schedule, StartDate
from airflow_tf.pipeline.fields import (
    MAX_REPLICAS,
    Arguments,
    Choices,
    Code,
    Count,
    DagId,
    Duration,
    Entrypoint,
    Environment,
    Grid,
    InputName,
    Natural,
    Percent,
    Rank,
    ReadAtParse,
    Seconds,
    Share,
    Size,
    Sources,
    Span,
    StageName,
    StaticUri,
    Tag,
    Templated,
    Text,
    Version,
    check_templates,
    check_uri,
    expand_callbacks,
    refuse,
)
from airflow_tf.pipeline.session_config import SessionConfig


class Spec(BaseModel):
    """Base of all parts: unknown keys and loose types are errors, nothing changes afterwards."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", ser_json_timedelta="float")


class CheckSpec(Spec):
    """What the content of an input must be; checked when it is staged, before devices are reserved."""

    format: Annotated[Literal["auto", "csv", "records", "any"], ReadAtParse] = "auto"
    columns: list[Annotated[Literal["int32", "int64", "float32", "float64", "string"], ReadAtParse]] | None = None
    header: Annotated[bool, ReadAtParse] = False
    delimiter: Annotated[Text, Field(max_length=1)] = ","
    encoding: Text = "utf-8"
    full: Annotated[bool, ReadAtParse] = False


class InputSpec(Spec):
    """One staged input. With ``shard`` each replica gets its share of it instead of all."""

    uri: Sources
    hdfs_conn_id: Text | None = None
    shard: Annotated[Literal["files", "lines", "lines_with_header", "records"] | None, ReadAtParse] = None
    require_success: Annotated[bool, ReadAtParse] = False
    check: CheckSpec | None = None


class DevicesSpec(Spec):
    """What is reserved: ``count`` replicas with ``per_replica`` devices or shares of them each, all or nothing."""

    count: Count = 1
    kind: Annotated[Literal["auto", "gpu", "static", "cpu"], ReadAtParse] = "auto"
    per_replica: Count = 1
    min_free_memory: Size = 0
    max_utilization: Percent | None = None
    names: Choices | None = None
    uuids: Choices | None = None
    share: Share = 1.0
    per_host: Count | None = None
    priority: Rank = 0
    time_limit: Span | None = None
    timeout: Duration | None = None
    poke_interval: Duration | None = None
    deferrable: Annotated[bool, ReadAtParse] = False


class AtLeast(Spec):
    """A success policy: so many replicas must succeed."""

    at_least: Count


class TrainSpec(Spec):
    """The training program and how it is run.

    Retries are for what dies around the program (a killed worker, a lost host): a program's own error is not retried.
    """

    code: Code | None = None
    working_directory: Templated | None = None
    entrypoint: Entrypoint
    strategy: Annotated[Literal["independent", "sync", "async", "v1_cluster", "towers"], ReadAtParse] = "independent"
    roles: dict[str, Annotated[Natural, ReadAtParse]] | None = None
    success: Annotated[Literal["all", "chief"] | AtLeast, ReadAtParse] = "all"
    start_timeout: Duration = timedelta(minutes=5)
    progress_timeout: Span | None = None
    evaluator_grace: Span | None = None
    memory_limit: Size | None = None
    arguments: Arguments = {}
    environment: Environment = {}
    session_config: SessionConfig = {}
    api: Annotated[Literal["auto", "v1", "tf2"], ReadAtParse] = "auto"
    python: Text | None = None
    start_method: Annotated[Literal["zygote", "spawn"], ReadAtParse] = "zygote"
    restarts: Natural = 0
    kill_grace_seconds: Seconds = 30.0
    retries: Natural = 2
    retry_delay: Duration = timedelta(seconds=10)
    execution_timeout: Duration | None = None
    deferrable: Annotated[bool, ReadAtParse] = False


class StopEarlySpec(Spec):
    """When a trial is stopped: it is worse than the median of the others at the same step."""

    min_steps: Annotated[int, Field(ge=1), ReadAtParse] = 1
    min_trials: Count = 3


class SweepSpec(Spec):
    """Trials of the training program: every combination of a grid, or a list of argument sets; the best goes on."""

    grid: Annotated[Grid, Field(min_length=1)] | None = None
    trials: Annotated[list[Arguments], Field(min_length=1)] | None = None
    metric: Text
    mode: Annotated[Literal["min", "max"], ReadAtParse] = "min"
    stop_early: StopEarlySpec | None = None
    parallel: Count | None = None

    @property
    def arguments(self) -> list[dict[str, Any]]:
        """The arguments of each trial, by its number."""
        return self.trials if self.trials is not None else expand_grid(self.grid or {})

    @model_validator(mode="after")
    def _check(self) -> SweepSpec:
        if (self.grid is None) == (self.trials is None):
            raise refuse("it needs one of 'grid' and 'trials'", todo="Write grid: {lr: [0.1, 0.01]}.")
        number = math.prod(map(len, self.grid.values())) if self.grid is not None else len(self.trials or ())
        if number > MAX_REPLICAS:
            raise refuse(f"{number} trials are too many", todo=f"Write at most {MAX_REPLICAS}.")
        return self


class EvaluateSpec(Spec):
    """The evaluation program: it reports ``metric`` for every candidate, and ``mode`` says which value is better."""

    entrypoint: Entrypoint
    arguments: Arguments = {}
    metric: Text
    mode: Annotated[Literal["min", "max"], ReadAtParse] = "min"
    inputs: list[Text] | None = None


class ExportSpec(Spec):
    """The program that makes a SavedModel of the checkpoint that will be published, on the CPU."""

    entrypoint: Entrypoint
    arguments: Arguments = {}


class KeepSpec(Spec):
    """Which published versions are kept; what no rule keeps is removed. Without this all are."""

    last: Natural = 0
    best: Natural = 0
    every: Natural = 0
    younger_than: Duration = timedelta(0)

    @model_validator(mode="after")
    def _check(self) -> KeepSpec:
        if not (self.last or self.best or self.every or self.younger_than):
            raise refuse("it keeps nothing", todo="Give last, best, every or younger_than.")
        return self


class CheckpointsSpec(Spec):
    """How the replicas' checkpoints become one, and the static base under which versions of it are published.

    By default a gang's checkpoint is its chief's, and that of independent replicas their average.
    """

    aggregate: (
        Annotated[Literal["average", "best", "latest", "top_k", "greedy_soup", "ema", "chief", "none"], ReadAtParse]
        | None
    ) = None
    metric: Text | None = None
    mode: Annotated[Literal["min", "max"], ReadAtParse] = "min"
    weights: Text | None = None
    top: Count | None = None
    decay: Annotated[float, ReadAtParse, Field(gt=0, lt=1)] = 0.9
    last: Count | None = None
    not_finite: Annotated[Literal["refuse", "leave_out"], ReadAtParse] = "refuse"
    optimizer: Annotated[Literal["average", "drop"], ReadAtParse] = "average"
    initial_checkpoint: Templated | None = None
    fresh: Annotated[bool, ReadAtParse] = False
    allow_from_scratch: Annotated[bool, ReadAtParse] = False
    upload_every: Span | None = None
    export: ExportSpec | None = None
    publish: StaticUri | None = None
    keep: KeepSpec | None = None
    hdfs_conn_id: Text | None = None

    @field_validator("initial_checkpoint")
    @classmethod
    def _check_initial(cls, value: str | None) -> str | None:
        return value if value in {None, "latest"} else check_uri(str(value))


class ApprovalSpec(Spec):
    """A person must agree before the model is published; without an answer in time the run fails."""

    subject: Templated | None = None
    body: Templated | None = None
    timeout: Duration | None = None
    users: Choices | None = None


class CallbackSpec(Spec):
    """A notifier or a function, by its name, and what it is given."""

    call: Annotated[Text, AfterValidator(check_name)]
    arguments: Annotated[dict[str, Any], AfterValidator(check_templates)] = Field(default={}, validate_default=True)

    @field_validator("arguments")
    @classmethod
    def _check_arguments(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "call" in info.data:  # else it is told that this is wrong
            check_callback(info.data["call"], value)
        return value


Callbacks = Annotated[list[CallbackSpec], BeforeValidator(expand_callbacks)]


class CallbacksSpec(Spec):
    """Who is told what becomes of a run, and of its tasks."""

    on_failure: Callbacks = []
    on_success: Callbacks = []
    on_task_execute: Callbacks = []
    on_task_failure: Callbacks = []
    on_task_retry: Callbacks = []
    on_task_skipped: Callbacks = []
    on_task_success: Callbacks = []


class StageSpec(Spec):
    """One of several trainings in a DAG: its keys are laid over those of the top, as a whole it is one declaration."""

    after: list[Text] = []
    starts_from: Text | None = None
    hdfs_conn_id: Text | None = None
    inputs: dict[InputName, InputSpec] | None = None
    devices: DevicesSpec | None = None
    train: TrainSpec | None = None
    sweep: SweepSpec | None = None
    evaluate: EvaluateSpec | None = None
    approval: ApprovalSpec | None = None
    checkpoints: CheckpointsSpec | None = None


class Declaration(Spec):
    """A whole ``*.tf.yaml``."""

    version: Version = 1
    extends: Text | None = None
    dag_id: DagId
    schedule: Schedule = None
    start_date: StartDate | None = None
    catchup: Annotated[bool, ReadAtParse] = False
    max_active_runs: Count | None = None
    owner: Text | None = None
    retries: Natural | None = None
    retry_delay: Duration | None = None
    callbacks: CallbacksSpec = CallbacksSpec()
    description: Text | None = None
    tags: list[Tag] = []
    params: dict[ParamName, ParamValue] = {}
    hdfs_conn_id: Text | None = None
    inputs: dict[InputName, InputSpec] = {}
    devices: DevicesSpec = DevicesSpec()
    train: TrainSpec
    sweep: SweepSpec | None = None
    evaluate: EvaluateSpec | None = None
    approval: ApprovalSpec | None = None
    checkpoints: CheckpointsSpec = CheckpointsSpec()
    stages: Annotated[dict[StageName, StageSpec], Field(min_length=1)] | None = None

    @field_validator("inputs", mode="before")
    @classmethod
    def _expand_inputs(cls, value: Any) -> Any:  # noqa: ANN401  runs before the type is checked
        """Read ``name: uri``, also with several, as ``name: {uri: uri}``."""
        if not isinstance(value, dict):
            return value
        return {name: {"uri": item} if isinstance(item, str | list) else item for name, item in value.items()}

    @field_validator("inputs")
    @classmethod
    def _check_variables(cls, value: dict[str, InputSpec]) -> dict[str, InputSpec]:
        """Refuse names that would become the same environment variable."""
        seen: dict[str, str] = {}
        for name in value:
            other = seen.setdefault(name.upper(), name)
            if other != name:
                raise refuse(f"{other!r} and {name!r} differ only in case", "both become one environment variable")
        return value
