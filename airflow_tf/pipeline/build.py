"""From a checked declaration to a DAG, by the package's public operators and nothing else.

Keys that the file leaves out are not passed on, so each default is written once, in its operator.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, TaskGroup, TriggerRule

from airflow_tf.core.checkpoint.methods import AVERAGE, CHIEF, SOUP
from airflow_tf.core.cluster import GANG_STRATEGIES, plan_roles, sharers
from airflow_tf.core.templates import is_template
from airflow_tf.core.verdict import ALL
from airflow_tf.hooks.devices import DEVICE_FIELDS
from airflow_tf.hooks.initial import LATEST
from airflow_tf.operators.checkpoint import CheckpointAggregateOperator, CheckpointPublishOperator
from airflow_tf.operators.evaluate import CheckpointEvaluateOperator
from airflow_tf.operators.export import CheckpointExportOperator
from airflow_tf.operators.retry import FailureClassPolicy
from airflow_tf.operators.sweep import TensorFlowTrialOperator
from airflow_tf.operators.train import TensorFlowTrainOperator
from airflow_tf.pipeline.approval import approval_task
from airflow_tf.pipeline.callbacks import run_callbacks, task_callbacks
from airflow_tf.pipeline.dag_fields import to_param, to_schedule
from airflow_tf.pipeline.declaration import Loaded, load_declaration
from airflow_tf.pipeline.models import Declaration, EvaluateSpec, ExportSpec, KeepSpec, Spec
from airflow_tf.pipeline.sweep import BEST_TRIAL, best_task, trial_arguments
from airflow_tf.sensors.devices import DeviceAvailabilitySensor
from airflow_tf.storage.sharding import FILES
from airflow_tf.transfers.hdfs_to_local import HdfsToLocalOperator

_OF_ONE_REPLICA = [name for name in DEVICE_FIELDS if name not in {"per_replica", "per_host", "time_limit"}]
"""What the evaluation's own device must be like too."""

FullId = Callable[[str], str]
"""From the id of a task in its group to the id that it has in the DAG."""


def load_dag(file: Path) -> DAG:
    """Read the declaration ``file`` and build its DAG.

    :raises InvalidDeclarationError: with every problem of the file.
    """
    return build_dag(load_declaration(file))


def build_dag(loaded: Loaded) -> DAG:
    """Build the DAG: stage inputs, reserve devices, train, aggregate, evaluate, export, approve, publish, as declared.

    The same file gives the same DAG, down to its serialised form: Airflow makes a new version of it only on change.
    """
    declaration = loaded.declaration
    with DAG(
        declaration.dag_id,
        schedule=to_schedule(declaration.schedule),
        default_args=task_defaults(declaration),
        **_given(declaration, "start_date", "catchup", "max_active_runs"),
        **run_callbacks(declaration),
        description=declaration.description,
        tags=declaration.tags,
        params={name: to_param(value) for name, value in declaration.params.items()},
        doc_md=as_markdown(loaded.document.text),
        auto_register=False,  # Airflow must not find half a DAG where building the rest fails
    ) as dag:
        add_tasks(loaded, dag, dag.task_group)
        dag.auto_register = True
    return dag


def add_tasks(loaded: Loaded, dag: DAG, group: TaskGroup) -> None:
    """Add the declared tasks to ``group`` of ``dag``, which must be the current one; each stage is a group in it."""
    if not loaded.stages:
        _add_training(loaded.declaration, dag, group)
    groups: dict[str, TaskGroup] = {}
    declarations = {stage.name: stage.loaded.declaration for stage in loaded.stages}
    for stage in loaded.stages:
        source = stage.starts_from
        begin = made_by(declarations[source], groups[source].child_id) if source is not None else None
        with TaskGroup(stage.name) as groups[stage.name]:
            _add_training(stage.loaded.declaration, dag, groups[stage.name], begin)
        for before in stage.before:
            groups[before] >> groups[stage.name]


def made_by(declaration: Declaration, full_id: FullId) -> dict[str, Any]:
    """Return the checkpoint that another training of this run has made: published, or chosen, as an initial one."""
    if declaration.checkpoints.publish:
        published = f"ti.xcom_pull(task_ids='{full_id('publish')}')"
        return {
            "source": f"{{{{ {published}['uri'] }}}}",
            "digest": f"{{{{ {published}['digest'] }}}}",
            "hdfs_conn_id": checkpoints_conn_id(declaration),
        }
    return {"from_task": full_id(_candidates_of(declaration)), **_judged(declaration.evaluate, full_id)}


def _add_training(
    declaration: Declaration, dag: DAG, group: TaskGroup, begin_with: dict[str, Any] | None = None
) -> None:
    """Add the tasks of one training; they find each other by the ids of ``group``.

    The devices of all replicas are held from the start, so all of them must be able to run at once, also beside those
    of other trainings: the DAG allows it.
    """
    full_id: FullId = group.child_id
    steps: list[Any] = [_stage(declaration, full_id)] if declaration.inputs else []
    begin = initial_checkpoint(declaration) if begin_with is None else begin_with
    steps += [_reserve(declaration, full_id), _train(declaration, full_id, begin)]
    if declaration.sweep:
        steps.append(best_task(declaration, full_id("train")))
    elif declaration.checkpoints.aggregate != "none":
        steps.append(_aggregate(declaration, full_id))
    if declaration.evaluate:
        steps.append(_evaluate(declaration, full_id))
    if declaration.checkpoints.export:
        steps.append(_export(declaration, declaration.checkpoints.export, full_id))
    if declaration.approval:
        steps.append(approval_task(declaration, declaration.approval, full_id("evaluate")))
    if declaration.checkpoints.publish:
        steps.append(_publish(declaration, declaration.checkpoints.publish, full_id))
    if group.group_id and declaration.train.success != ALL and steps[-1].task_id == full_id("train"):
        # A replica that is not required ends skipped when it fails: what follows the group must not be skipped for it.
        steps.append(EmptyOperator(task_id="trained", trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS))
    for before, after in pairwise(steps):
        before >> after
    dag.max_active_tasks = max(dag.max_active_tasks, _replicas_of(dag))


def _replicas_of(dag: DAG) -> int:
    """Return how many replicas all trainings of a DAG have together: groups that train side by side hold them all."""
    mapped: list[Any] = [task for task in dag.tasks if task.is_mapped]
    given = [task.partial_kwargs for task in mapped if issubclass(task.operator_class, TensorFlowTrainOperator)]
    return sum(each["count"] for each in given if isinstance(each.get("count"), int))


def task_defaults(declaration: Declaration) -> dict[str, Any]:
    """Return what all tasks of the declaration get unless they say otherwise."""
    given = _given(declaration, "owner", "retries", "retry_delay") | task_callbacks(declaration)
    return {"retry_policy": FailureClassPolicy()} | given


def as_markdown(text: str) -> str:
    """Return a declaration as a block of code, which Airflow shows as documentation."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}yaml\n{text.rstrip()}\n{fence}\n"


def _given(spec: Spec, *names: str) -> dict[str, Any]:
    """Return those of ``names`` that the file sets."""
    return {name: getattr(spec, name) for name in names if name in spec.model_fields_set}


def _stage(declaration: Declaration, full_id: FullId) -> TaskGroup:
    with TaskGroup("stage") as group:
        for name, spec in declaration.inputs.items():
            HdfsToLocalOperator(
                task_id=name,
                source=spec.uri,
                input_name=full_id(name),
                hdfs_conn_id=spec.hdfs_conn_id or declaration.hdfs_conn_id,
                check=spec.check.model_dump(exclude_unset=True) if spec.check else None,
                replicas=sharers_of(declaration) if spec.shard else 1,
                shard=spec.shard or FILES,
                **_given(spec, "require_success"),
            )
    return group


def sharers_of(declaration: Declaration) -> int:
    """Return how many replicas get a share of an input with ``shard``."""
    train, count = declaration.train, declaration.devices.count
    return sharers(train.strategy, plan_roles(train.strategy, train.roles, count), count)


def _reserve(declaration: Declaration, full_id: FullId) -> DeviceAvailabilitySensor:
    devices, base = declaration.devices, declaration.checkpoints.publish
    return DeviceAvailabilitySensor(
        for_task=full_id("train"),
        count=devices.count,
        **({"task_id": "wait_for_devices", "hold": False} if declaration.sweep else {"task_id": "reserve_devices"}),
        mode="reschedule",
        publish={"destination": base, "hdfs_conn_id": checkpoints_conn_id(declaration)} if base else None,
        **_given(devices, *DEVICE_FIELDS, "timeout", "poke_interval", "deferrable"),
    )


def _inputs(declaration: Declaration, names: list[str], full_id: FullId) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "source": declaration.inputs[name].uri,
            "hdfs_conn_id": declaration.inputs[name].hdfs_conn_id or declaration.hdfs_conn_id,
            "shard": declaration.inputs[name].shard,
            # Empty where a user has marked the staging task: then there is nothing to compare with.
            "digest": f"{{{{ (ti.xcom_pull(task_ids='{full_id(f'stage.{name}')}') or {{}}).get('digest', '') }}}}",
            **({} if full_id(name) == name else {"staged_as": full_id(name)}),
            **_given(declaration.inputs[name], "require_success"),
        }
        for name in names
    }


def _device_timeout(declaration: Declaration) -> dict[str, float]:
    """Return how long a task waits that must reserve devices of its own."""
    timeout = declaration.devices.timeout
    return {} if timeout is None else {"device_timeout": timeout.total_seconds()}


def _train(declaration: Declaration, full_id: FullId, begin_with: dict[str, Any] | None) -> Any:  # noqa: ANN401  a mapped operator, whose class Airflow does not export
    train, devices, sweep = declaration.train, declaration.devices, declaration.sweep
    operator, number = (
        (TensorFlowTrialOperator, len(sweep.arguments)) if sweep else (TensorFlowTrainOperator, devices.count)
    )
    own = trial_arguments(sweep) if sweep else {"count": number, "map_index_template": "replica {{ task.replica }}"}
    return operator.partial(
        task_id="train",
        entrypoint=train.entrypoint,
        inputs=_inputs(declaration, list(declaration.inputs), full_id),
        require_checkpoint=declaration.checkpoints.aggregate != "none",
        **own,
        **_given(devices, *DEVICE_FIELDS),
        **_device_timeout(declaration),
        **_given(declaration.checkpoints, "fresh", "allow_from_scratch"),
        **({} if begin_with is None else {"initial_checkpoint": begin_with}),
        **_upload(declaration),
        **_success(declaration),
        **_start_timeout(declaration),
        **_given(
            train,
            "strategy",
            "roles",
            "arguments",
            "environment",
            "session_config",
            "api",
            "python",
            "code",
            "working_directory",
            "start_method",
        ),
        retries=train.retries,
        retry_delay=train.retry_delay,
        **_given(
            train,
            "progress_timeout",
            "evaluator_grace",
            "memory_limit",
            "restarts",
            "kill_grace_seconds",
            "execution_timeout",
            "deferrable",
        ),
    ).expand(replica=list(range(number)))


def checkpoints_conn_id(declaration: Declaration) -> str | None:
    """Return the connection by which checkpoints are published and fetched: their own, or that of the inputs."""
    return declaration.checkpoints.hdfs_conn_id or declaration.hdfs_conn_id


def initial_checkpoint(declaration: Declaration) -> dict[str, str | None] | None:
    """Return ``source`` and ``hdfs_conn_id`` of the checkpoint that training begins with, if one is declared."""
    checkpoints = declaration.checkpoints
    source = checkpoints.initial_checkpoint
    if source is None:
        return None
    if source == LATEST:
        source = f"{(checkpoints.publish or '').rstrip('/')}/{LATEST}"
    return {"source": source, "hdfs_conn_id": checkpoints_conn_id(declaration)}


def _upload(declaration: Declaration) -> dict[str, Any]:
    checkpoints = declaration.checkpoints
    if checkpoints.upload_every is None:
        return {}
    place = {"destination": checkpoints.publish, "hdfs_conn_id": checkpoints_conn_id(declaration)}
    return {"upload": place | {"every": checkpoints.upload_every}}


def _aggregate(declaration: Declaration, full_id: FullId) -> CheckpointAggregateOperator:
    train, method = declaration.train, declaration.checkpoints.aggregate
    # A replica that is not required ends skipped when it fails; this task counts those that succeeded.
    rule: dict[str, Any] = {} if train.success == ALL else {"trigger_rule": TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS}
    return CheckpointAggregateOperator(
        task_id="aggregate_checkpoints",
        from_task=full_id("train"),
        method=method or (CHIEF if train.strategy in GANG_STRATEGIES else AVERAGE),
        **_given(
            declaration.checkpoints, "metric", "mode", "weights", "top", "decay", "last", "not_finite", "optimizer"
        ),
        **(_soup(declaration, full_id) if method == SOUP else {}),
        **_ahead(declaration),
        **rule,
    )


def _ahead(declaration: Declaration) -> dict[str, Any]:
    """Return where an average goes while it is made: where nothing but failure keeps it from being published."""
    base = declaration.checkpoints.publish
    if base is None or declaration.evaluate or declaration.approval:
        return {}
    return {"destination": base, "hdfs_conn_id": checkpoints_conn_id(declaration)}


def _candidates_of(declaration: Declaration) -> str:
    """Return the task that says what may be published."""
    return BEST_TRIAL if declaration.sweep else "aggregate_checkpoints"


def _soup(declaration: Declaration, full_id: FullId) -> dict[str, Any]:
    """Return how a greedy soup asks the evaluation program itself, and by which of its metrics it decides."""
    evaluate, train = declaration.evaluate, declaration.train
    assert evaluate is not None
    names = evaluate.inputs if evaluate.inputs is not None else list(declaration.inputs)
    program = _given(evaluate, "entrypoint", "arguments") | _given(train, "environment", "python", "code")
    return {
        "metric": evaluate.metric,
        "mode": evaluate.mode,
        "evaluate": program | {"inputs": _inputs(declaration, names, full_id)},
    }


def _start_timeout(declaration: Declaration) -> dict[str, float]:
    train = declaration.train
    return {"start_timeout": train.start_timeout.total_seconds()} if "start_timeout" in train.model_fields_set else {}


def _success(declaration: Declaration) -> dict[str, Any]:
    success = declaration.train.success
    return {} if success == ALL else {"success": success if isinstance(success, str) else success.model_dump()}


def _evaluate(declaration: Declaration, full_id: FullId) -> CheckpointEvaluateOperator:
    evaluate, train = declaration.evaluate, declaration.train
    assert evaluate is not None
    names = evaluate.inputs if evaluate.inputs is not None else list(declaration.inputs)
    return CheckpointEvaluateOperator(
        task_id="evaluate",
        from_task=full_id(_candidates_of(declaration)),
        entrypoint=evaluate.entrypoint,
        inputs=_inputs(declaration, names, full_id),
        **_given(evaluate, "arguments"),
        **_given(train, "environment", "session_config", "api", "python", "code"),
        **_given(declaration.devices, *_OF_ONE_REPLICA),
        **_device_timeout(declaration),
    )


def _export(declaration: Declaration, spec: ExportSpec, full_id: FullId) -> CheckpointExportOperator:
    return CheckpointExportOperator(
        task_id="export",
        from_task=full_id(_candidates_of(declaration)),
        entrypoint=spec.entrypoint,
        inputs=_inputs(declaration, list(declaration.inputs), full_id),
        **_given(spec, "arguments"),
        **_given(declaration.train, "environment", "api", "python", "code"),
        **_judged(declaration.evaluate, full_id),
    )


def _publish(declaration: Declaration, base: str, full_id: FullId) -> CheckpointPublishOperator:
    checkpoints, evaluate = declaration.checkpoints, declaration.evaluate
    return CheckpointPublishOperator(
        task_id="publish",
        from_task=full_id(_candidates_of(declaration)),
        destination=base,
        hdfs_conn_id=checkpoints_conn_id(declaration),
        outlets=[Asset(f"{declaration.dag_id}_{full_id('model')}" if is_template(base) else base.rstrip("/"))],
        export_task=full_id("export") if checkpoints.export else None,
        **_keep(checkpoints.keep),
        **_judged(evaluate, full_id),
    )


def _keep(keep: KeepSpec | None) -> dict[str, Any]:
    if keep is None:
        return {}
    rules = _given(keep, "last", "best", "every")
    return {"keep": rules | {"younger_than_seconds": keep.younger_than.total_seconds()}}


def _judged(evaluate: EvaluateSpec | None, full_id: FullId) -> dict[str, Any]:
    if evaluate is None:
        return {}
    return {"evaluation_task": full_id("evaluate"), "metric": evaluate.metric, "mode": evaluate.mode}
