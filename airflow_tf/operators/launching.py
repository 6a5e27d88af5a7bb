"""What a training operator is told to run: its parameters, rendered and checked, as one launch per replica."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import jinja2
from airflow.sdk import Context

from airflow_tf.core.cluster import GANG_STRATEGIES, STRATEGY_VARIABLE, plan_roles, sharers, tasks, trainers
from airflow_tf.core.devices import DeviceRequest, Reading
from airflow_tf.core.errors import DeclarationError, TemplateError
from airflow_tf.core.identity import RunFolders
from airflow_tf.core.launch import CLUSTER_VARIABLE, Plan, ReplicaLaunch
from airflow_tf.core.ledger import ReplicaRecord
from airflow_tf.core.manifest import StagedInput
from airflow_tf.core.matching import suits
from airflow_tf.core.session_config import ConfigContext, ValidatedConfig
from airflow_tf.core.session_config.files import names_file
from airflow_tf.core.session_config.types import Api
from airflow_tf.core.settings import Settings
from airflow_tf.core.templates import coerce
from airflow_tf.core.tf_config import read_tf_config
from airflow_tf.core.units import parse_bytes, parse_seconds
from airflow_tf.core.verdict import ALL, LEAD, parse_success
from airflow_tf.devices.registry import read_all
from airflow_tf.hooks.airflow_run import TaskRun
from airflow_tf.hooks.carrying import Generation, rescued, upload_of
from airflow_tf.hooks.code import find_entrypoint, program_folder
from airflow_tf.hooks.devices import DEVICE_FIELDS, DeviceSeeker
from airflow_tf.hooks.initial import ensure_initial
from airflow_tf.hooks.mapping import literal_replicas
from airflow_tf.hooks.settings import load_settings
from airflow_tf.hooks.staging import ensure_all_staged, staged_as
from airflow_tf.operators.beginning import initial_source
from airflow_tf.operators.config_file import render_config_file, validate_config
from airflow_tf.storage.sharding import Part, fill, plan_shares

log = logging.getLogger(__name__)

Number = TypeVar("Number", int, float)

_PER_REPLICA = ("arguments", "environment", "session_config")
"""Fields that may use ``replica``: a gang is started by one task instance, which renders them for every replica."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a task instance can start: its own replica, or all replicas of its gang."""

    plan: Plan
    own: ReplicaLaunch
    launches: tuple[ReplicaLaunch, ...]

    @property
    def replicas(self) -> list[int]:
        """The numbers of what is started."""
        return [launch.replica for launch in self.launches]


class LaunchingOperator(DeviceSeeker):
    """Describe the program of one replica of a gang, or of all of them."""

    code: str | None = None
    working_directory: str | None = None
    template_fields: Sequence[str] = (
        "entrypoint",
        "code",
        "working_directory",
        "arguments",
        "environment",
        "session_config",
        "inputs",
        *DEVICE_FIELDS,
        "restarts",
        "kill_grace_seconds",
        "start_timeout",
        "progress_timeout",
        "evaluator_grace",
        "memory_limit",
        "initial_checkpoint",
        "upload",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "session_config": "json",
        "arguments": "json",
        "environment": "json",
        "inputs": "json",
    }

    _unrendered: Mapping[str, Any] = MappingProxyType({})
    _jinja_env: jinja2.Environment | None = None

    def __init__(  # noqa: PLR0913 (the declaration's train section, one argument per key)
        self,
        *,
        replica: int,
        entrypoint: str,
        count: int | None = None,
        strategy: str = "independent",
        roles: Mapping[str, int] | None = None,
        success: str | Mapping[str, int] = ALL,
        start_timeout: float | str = 300.0,
        progress_timeout: float | str | None = None,
        evaluator_grace: float | str = 600.0,
        memory_limit: int | str | None = None,
        arguments: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        session_config: Mapping[str, Any] | str | None = None,
        inputs: Mapping[str, Any] | None = None,
        api: Api = "auto",
        restarts: int | str = 0,
        kill_grace_seconds: float | str = 30.0,
        require_checkpoint: bool = True,
        initial_checkpoint: Mapping[str, str | None] | None = None,
        upload: Mapping[str, Any] | None = None,
        fresh: bool = False,
        allow_from_scratch: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.replica = replica
        self.entrypoint = entrypoint
        self.count = count
        self.strategy = strategy
        self.roles = roles
        self.success = success
        self.start_timeout = start_timeout
        self.progress_timeout = progress_timeout
        self.evaluator_grace = evaluator_grace
        self.memory_limit = memory_limit
        self.arguments = arguments
        self.environment = environment
        self.session_config = session_config
        self.inputs = inputs
        self.api = api
        self.restarts = restarts
        self.kill_grace_seconds = kill_grace_seconds
        self.require_checkpoint = require_checkpoint
        self.initial_checkpoint = initial_checkpoint
        self.upload = upload
        self.fresh = fresh
        self.allow_from_scratch = allow_from_scratch

    def _do_render_template_fields(
        self,
        parent: Any,  # noqa: ANN401 (Airflow's signature)
        template_fields: Iterable[str],
        context: Context,
        jinja_env: Any,  # noqa: ANN401 (Airflow's signature)
        seen_oids: set[int],
    ) -> None:
        """Render with ``replica`` and ``inputs`` beside Airflow's variables (Airflow's own hook for subclasses).

        A session config may be a file. That is not left to ``template_ext``, which would take any text in ``inputs`` or
        ``arguments`` with such an ending for a file.
        """
        if parent is self:
            self._choose_replica(context)
        variables: Any = {**context, **self._variables(context, self.replica)}
        if parent is self:
            self._unrendered = {name: getattr(self, name) for name in _PER_REPLICA}
            self._jinja_env = jinja_env
            template_fields = [name for name in template_fields if name != "session_config"]
            self.session_config = self._rendered("session_config", self.session_config, variables)
        super()._do_render_template_fields(parent, template_fields, variables, jinja_env, seen_oids)

    def _choose_replica(self, context: Context) -> None:
        """Settle which replica this instance is, before anything is rendered for it: as declared."""

    def _rendered(self, name: str, value: Any, variables: Any) -> Any:  # noqa: ANN401 (any field)
        assert self._jinja_env is not None
        if name == "session_config" and names_file(value):
            return render_config_file(value, variables, self._jinja_env)
        return self.render_template(value, variables, self._jinja_env)

    def _variables(self, context: Context, replica: int) -> dict[str, Any]:
        """Return what templates may use besides Airflow's variables."""
        folders = self._folders(context)
        inputs = {name: str(folders.staged(staged_as(name, spec))) for name, spec in (self.inputs or {}).items()}
        return {"replica": {"index": replica, "count": self._count(context)}, "inputs": inputs}

    def _folders(self, context: Context) -> RunFolders:
        return TaskRun.from_context(context).folders(load_settings())

    def _rendered_for(self, context: Context, replica: int) -> dict[str, Any]:
        """Return the fields that may differ between replicas, rendered for ``replica``.

        :raises TemplateError: if one cannot be rendered for it.
        """
        if replica == self.replica:
            return {name: getattr(self, name) for name in _PER_REPLICA}
        variables: Any = {**context, **self._variables(context, replica)}
        try:
            return {name: self._rendered(name, value, variables) for name, value in self._unrendered.items()}
        except jinja2.TemplateError as error:
            what = f"a template of task {self.task_id} cannot be rendered for replica {replica}"
            raise TemplateError(what, str(error)) from error

    def _program(self, context: Context, settings: Settings, folders: RunFolders) -> Program:
        """Check everything that can be checked, stage the inputs, and describe what this task instance can start."""
        plan, count = self._plan(context), self._count(context)
        if not 0 <= self.replica < count:
            raise DeclarationError(
                f"replica {self.replica} is not one of {count}", todo=f"Give one of 0 to {count - 1}."
            )
        numbers = range(count) if plan.is_gang else [self.replica]
        devices = self._config_context(settings)
        launches = [self._launch(context, devices, number) for number in numbers]
        shared = {name: spec["shard"] for name, spec in (self.inputs or {}).items() if spec.get("shard")}
        sharing = sharers(plan.strategy, plan.roles, count) if shared else 0
        staged = self._stage(settings, folders)
        shares = {name: plan_shares(staged[name], sharing, way) for name, way in shared.items()}
        initial = self._initial(context, settings, folders)
        launches = [
            dataclasses.replace(
                launch,
                inputs=_inputs_of(launch, staged, shares, folders),
                initial_checkpoint=initial,
                # The first one's checkpoint is the gang's; the others need not leave any.
                require_checkpoint=launch.require_checkpoint and (not plan.is_gang or launch.replica == LEAD),
            )
            for launch in launches
        ]
        if self.upload is not None:
            number = self._copied_replica(plan)
            copied = {number: upload_of(self.upload, TaskRun.from_context(context), number)}
            launches = [dataclasses.replace(each, upload=copied.get(each.replica)) for each in launches]
        own = next(launch for launch in launches if launch.replica == self.replica)
        return Program(plan, own, tuple(launches))

    def _launch(self, context: Context, devices: ConfigContext, replica: int) -> ReplicaLaunch:
        """Describe one replica, but for its inputs."""
        count = self._count(context)
        base = program_folder(self.code, context["dag"], lambda: self._folders(context), self.log)
        entrypoint, code_folder = find_entrypoint(self.entrypoint, base, is_code=self.code is not None)
        fields = self._rendered_for(context, replica)
        environment = {key: str(value) for key, value in (fields["environment"] or {}).items()}
        _check_cluster_variable(self.strategy, environment)
        config = self._session_config(fields["session_config"], devices, context, replica)
        for warning in config.warnings if replica == self.replica else ():
            self.log.warning("%s", warning)
        return ReplicaLaunch(
            replica=replica,
            count=count,
            entrypoint=entrypoint,
            code_folder=code_folder,
            working_directory=str(base / self.working_directory) if self.working_directory else "",
            arguments={key: str(value) for key, value in (fields["arguments"] or {}).items()},
            environment=environment,
            session_config=dict(config.config),
            api=self.api,
            require_checkpoint=self.require_checkpoint,
            kill_grace_seconds=parse_seconds(self.kill_grace_seconds),
            memory_limit_bytes=_limit("memory_limit", self.memory_limit, parse_bytes),
            fresh=self.fresh,
            allow_from_scratch=self.allow_from_scratch,
        )

    def _session_config(self, value: Any, devices: ConfigContext, context: Context, replica: int) -> ValidatedConfig:  # noqa: ANN401 (rendered)
        """Check the session config of one replica: that for all, with what its role is given instead."""
        roles = self._plan(context).roles
        role = tasks(roles)[replica].role if roles else None
        context_of_role = dataclasses.replace(devices, roles=tuple(roles))
        return validate_config(value, self._unrendered.get("session_config"), role, context_of_role)

    def _plan(self, context: Context) -> Plan:
        """Say how the replicas belong together.

        :raises DeclarationError: if strategy, roles and count do not fit.
        """
        count = self._count(context)
        roles = plan_roles(self.strategy, self.roles, count)
        success, at_least = parse_success(self.success, trainers(roles, count))
        return Plan(
            strategy=self.strategy,
            roles=roles,
            success=success,
            at_least=at_least,
            restarts=int(coerce(self.restarts, "int", "restarts")),
            start_timeout_seconds=parse_seconds(self.start_timeout),
            progress_timeout_seconds=_limit("progress_timeout", self.progress_timeout, parse_seconds),
            evaluator_grace_seconds=parse_seconds(self.evaluator_grace),
        )

    def _config_context(self, settings: Settings) -> ConfigContext:
        """Describe the devices that a replica will get, as far as they are known before they are reserved."""
        request = self.device_request()
        return config_context(request, read_all(settings, request.kind), self.api, self.strategy)

    def _count(self, context: Mapping[str, Any]) -> int:
        """Return the number of replicas: as declared, or the number of literal mapped instances."""
        if self.count is not None:
            return self.count
        return len(literal_replicas(context["dag"], self.task_id)) or 1

    def _stage(self, settings: Settings, folders: RunFolders) -> dict[str, StagedInput]:
        """Make sure that the inputs are on this host."""
        return ensure_all_staged(self.inputs or {}, folders=folders, settings=settings, log=self.log)

    def _initial(self, context: Context, settings: Settings, folders: RunFolders) -> str | None:
        """Make sure that the checkpoint to begin with is on this host, and return its prefix."""
        source, made = initial_source(self.initial_checkpoint, context["ti"])
        if not source:
            return None
        return ensure_initial(
            source,
            hdfs_conn_id=(self.initial_checkpoint or {}).get("hdfs_conn_id"),
            folders=folders,
            task_id=self.task_id,
            settings=settings,
            log=self.log,
            allow_from_scratch=self.allow_from_scratch,
            made=made,
        )

    def _copied_replica(self, plan: Plan) -> int:
        """Return whose checkpoints are copied while training goes on: a gang has but its first replica's."""
        return LEAD if plan.is_gang else self.replica

    def _with_copy(
        self, program: Program, run: TaskRun, record: ReplicaRecord, settings: Settings, folder: Path
    ) -> Program:
        """Let the program begin with what was copied of this generation, where that is newer than what this host has.

        :param folder: of the gang on this host.
        """
        if self.upload is None or self.fresh:
            return program
        copy = rescued(
            Generation(run, self._copied_replica(program.plan), record, folder),
            self.upload,
            settings=settings,
            log=self.log,
            allow_from_scratch=self.allow_from_scratch,
        )
        if not copy:
            return program
        launches = tuple(dataclasses.replace(launch, **copy) for launch in program.launches)
        return Program(program.plan, next(each for each in launches if each.replica == self.replica), launches)


def _inputs_of(
    launch: ReplicaLaunch,
    staged: Mapping[str, StagedInput],
    shares: Mapping[str, Sequence[Sequence[Part]]],
    folders: RunFolders,
) -> dict[str, str]:
    """Return name -> folder as the replica sees it: one that has no share sees all."""
    found = {name: each.folder for name, each in staged.items()}
    for name, planned in shares.items():
        if launch.replica < len(planned):
            target = folders.root / "shards" / Path(staged[name].folder).name / f"{launch.replica}-of-{len(planned)}"
            found[name] = str(fill(staged[name], planned[launch.replica], target))
    return found


def config_context(request: DeviceRequest, readings: Sequence[Reading], api: Api, strategy: str) -> ConfigContext:
    """Describe the devices that a replica may get out of those that were read, for the check of its session config."""
    found = [reading.device for reading in readings]
    devices = [device for device in found if suits(device, request)] or found
    memories = [device.memory_bytes for device in devices if device.memory_bytes is not None]
    return ConfigContext(
        api=api,
        devices=request.per_replica,
        kind=devices[0].kind if devices else request.kind,
        memory_bytes=min(memories, default=None),
        strategy=strategy,
        share_percent=request.share_percent,
    )


def _check_cluster_variable(strategy: str, environment: Mapping[str, str]) -> None:
    """Refuse a declared ``TF_CONFIG`` that a gang does not need or TensorFlow cannot use."""
    declared = environment.get(CLUSTER_VARIABLE)
    if declared is None:
        return
    if strategy in GANG_STRATEGIES:
        why = f"strategy {strategy} gives each replica its own, with new ports for each attempt"
        raise DeclarationError(f"environment.{CLUSTER_VARIABLE} cannot be declared", why, "Remove it.")
    for warning in read_tf_config(declared, environment.get(STRATEGY_VARIABLE, ""))[1]:
        log.warning("environment.%s: %s", CLUSTER_VARIABLE, warning)


def _limit(name: str, value: float | str | None, parse: Callable[[float | str], Number]) -> Number | None:
    """Read a limit that is off when it is left out.

    :raises DeclarationError: if it is not greater than zero.
    """
    limit = None if value is None else parse(value)
    if limit is not None and limit <= 0:
        raise DeclarationError(f"{name} is {value!r}", todo="Write a value greater than 0, or leave it out.")
    return limit
