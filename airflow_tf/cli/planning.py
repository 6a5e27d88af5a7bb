"""What a run of a declaration would do on this host, found out without reserving, copying or writing anything."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from airflow_tf.cli.known_values import KnownValues, problem_row
from airflow_tf.cli.output import Row
from airflow_tf.core.cluster import Task, plan_roles, tasks
from airflow_tf.core.devices import Device, DeviceRequest, Reading
from airflow_tf.core.errors import AirflowTfError, DevicesNeverFitError
from airflow_tf.core.identity import GangKey, readable
from airflow_tf.core.ledger import Refused
from airflow_tf.core.manifest import Measured
from airflow_tf.core.matching import Offer, choose
from airflow_tf.core.session_config import validate
from airflow_tf.core.session_config.files import form_of, names_file, parse_text
from airflow_tf.core.session_config.roles import for_role
from airflow_tf.core.settings import Settings
from airflow_tf.core.templates import has_template, is_template, without_templates
from airflow_tf.core.tf_config import cluster_of
from airflow_tf.core.units import format_bytes
from airflow_tf.devices.registry import read_all
from airflow_tf.hooks.devices import DEVICE_FIELDS, DeviceSeeker
from airflow_tf.hooks.hdfs import HdfsHook
from airflow_tf.hooks.initial import LATEST
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.ledger.reservations import Ask
from airflow_tf.operators.launching import config_context
from airflow_tf.pipeline.build import build_dag, checkpoints_conn_id, initial_checkpoint, sharers_of
from airflow_tf.pipeline.declaration import Loaded
from airflow_tf.pipeline.entrypoints import missing_functions
from airflow_tf.pipeline.errors import format_path
from airflow_tf.pipeline.models import InputSpec
from airflow_tf.pipeline.session_config import read_literal
from airflow_tf.storage.cache_entries import cache_entries, removable
from airflow_tf.storage.client import latest_version, measure
from airflow_tf.supervisor.acquire import this_host

_LOOK_SECONDS = 60.0
_NEXT_RUN = "next run"


class Planner:
    """Looks at everything that a run of one declaration needs.

    :param given: values of params, as a run is triggered with.
    :ivar measured: what was found of each input whose URI is known.
    """

    def __init__(self, loaded: Loaded, settings: Settings, given: Mapping[str, Any]) -> None:
        self._loaded, self._declaration, self._settings = loaded, loaded.declaration, settings
        self._dag = build_dag(loaded)
        self._values = KnownValues(self._dag, given)
        self._count = self._declaration.devices.count
        self.measured: dict[str, Measured] = {}

    def plan(self) -> Row:
        """Return the plan as plain JSON; what would fail is in ``problems``, what only a run knows in ``later``."""
        declaration, train = self._declaration, self._declaration.train
        inputs = [self._input(name, spec) for name, spec in declaration.inputs.items()]
        for missing in missing_functions(self._loaded):
            self._values.add_problem(format_path(missing.path), missing.what, missing.todo)
        request, readings = self._request()
        replicas = self._replicas(request, readings)
        arguments = self._values.render(dict(train.arguments), "train.arguments", self._replica(0))
        environment = self._values.render(dict(train.environment), "train.environment", self._replica(0))
        return {
            "file": str(self._loaded.document.file),
            "dag_id": declaration.dag_id,
            "schedule": declaration.schedule,
            "params": self._values.params,
            "tasks": _tasks(self._dag),
            "inputs": inputs,
            "devices": self._devices(request, readings),
            "train": {
                "strategy": train.strategy,
                "entrypoint": train.entrypoint,
                "python": self._python(),
                "arguments": arguments,
                "environment": environment,
                "api": train.api,
                "replicas": replicas,
            },
            "trials": self._trials(),
            "destinations": self._destinations(),
            "later": self._values.later,
            "problems": self._values.problems,
        }

    def _trials(self) -> list[dict[str, Any]]:
        """Return the arguments of every trial of a sweep, rendered as far as they are known."""
        trials = self._declaration.sweep.arguments if self._declaration.sweep else []
        return [self._values.render(trial, "sweep", self._replica(number)) for number, trial in enumerate(trials)]

    def _replica(self, number: int) -> dict[str, int]:
        """Return what a template knows of a replica; each trial of a sweep is one."""
        sweep = self._declaration.sweep
        return {"index": number, "count": len(sweep.arguments) if sweep else self._count}

    @contextlib.contextmanager
    def _noting(self, key: str) -> Iterator[None]:
        """Turn errors into problems of ``key``."""
        try:
            yield
        except AirflowTfError as error:
            self._values.add_problem(key, f"{error.what}: {error.why}" if error.why else error.what, error.todo)
        except AirflowException as error:  # a connection that Airflow does not have
            self._values.add_problem(key, str(error), "Add it: airflow connections add.")

    def _input(self, name: str, spec: InputSpec) -> Row:
        key = f"inputs.{name}"
        conn_id = spec.hdfs_conn_id or self._declaration.hdfs_conn_id
        uri = self._values.render(spec.uri, f"{key}.uri")
        row: Row = {"name": name, "uri": uri, "hdfs_conn_id": conn_id, "shard": spec.shard, "files": None}
        row |= {"bytes": None, "cached_bytes": None}
        if is_template(uri):
            return row
        with self._noting(key):
            options = HdfsHook(conn_id).storage_options(uri)
            found = measure(
                uri, options=options, cache_dir=self._settings.cache_dir, require_success=spec.require_success
            )
            row |= {"files": found.files, "bytes": found.bytes, "cached_bytes": found.cached_bytes}
            self.measured[uri] = found
            among = sharers_of(self._declaration)
            if spec.shard == "files" and found.files < among:
                todo = "Write it as more files, use fewer replicas, or leave 'shard' out."
                self._values.add_problem(key, f"{found.files} files cannot be shared by {among} replicas", todo)
        return row

    def _request(self) -> tuple[DeviceRequest, list[Reading]]:
        devices = self._declaration.devices
        given = {name: getattr(devices, name) for name in DEVICE_FIELDS if name in devices.model_fields_set}
        known = {name: self._values.render(value, f"devices.{name}") for name, value in given.items()}
        with self._noting("devices"):
            seeker = DeviceSeeker(
                task_id="plan", **{name: value for name, value in known.items() if not has_template(value)}
            )
            request = seeker.device_request()
            return request, read_all(self._settings, request.kind)
        return DeviceRequest(kind=devices.kind), []

    def _devices(self, request: DeviceRequest, readings: list[Reading]) -> Row:
        host = this_host()
        row: Row = {"asked": request.to_json() | {"replicas": self._count}, "host": host.name, "now": "never"}
        row |= {"replicas": [], "reasons": []}
        with self._noting("devices"):
            try:
                found = self._outlook(request, readings)
            except DevicesNeverFitError as error:
                row["reasons"] = [f"{error.what}: {error.why}"]
                raise
            if isinstance(found, Refused):
                return row | {"now": "waits", "free": found.free, "reasons": list(found.reasons)}
            return row | {"now": "available", "replicas": [[device.uuid for device in each] for each in found]}
        return row

    def _outlook(self, request: DeviceRequest, readings: list[Reading]) -> list[tuple[Device, ...]] | Refused:
        host, numbers = this_host(), tuple(range(self._count))
        if not _has_ledger(self._settings.ledger_url):
            label = GangKey("", self._declaration.dag_id, _NEXT_RUN, "train").label
            return choose(label, request, self._count, self._count, [Offer(each) for each in readings], host.name)
        with contextlib.closing(open_ledger(self._settings)) as ledger:
            devices = self._declaration.devices
            turn = DeviceSeeker(task_id="plan", priority=self._known(devices.priority, 0)).turn(_LOOK_SECONDS)
            key = GangKey(ledger.ledger_id, self._declaration.dag_id, _NEXT_RUN, "train")
            return LedgerReader(ledger).outlook(Ask(key, request, numbers, turn), host, readings)

    def _known(self, value: Any, otherwise: int) -> Any:  # noqa: ANN401  a number, or text with one
        rendered = self._values.render(value, "devices.priority")
        return otherwise if is_template(rendered) else rendered

    def _replicas(self, request: DeviceRequest, readings: list[Reading]) -> list[Row]:
        """Describe each replica: its task in the cluster, its TF_CONFIG but for addresses, its session config."""
        train = self._declaration.train
        roles = plan_roles(train.strategy, train.roles, self._count)
        members: list[Task | None] = [*tasks(roles)] or [None] * self._count
        addresses = ["<host>:<port>"] * self._count
        context = config_context(request, readings, train.api, train.strategy)
        found = []
        for number, member in enumerate(members):
            row: Row = {"replica": number, "role": member and str(member), "tf_config": None}
            row |= {"session_config": {}, "applied_by": {}, "warnings": []}
            if member:
                row["tf_config"] = cluster_of(roles, addresses, number)
            with self._noting("train.session_config"):
                given = self._config(self._replica(number))
                config = for_role(without_templates(given), member.role if member else None, tuple(roles))
                checked = validate(config, context)
                row["session_config"], row["warnings"] = checked.config, list(checked.warnings)
                row["applied_by"] = {field.path: field.by for field in checked.fields}
            found.append(row)
        return found

    def _config(self, replica: Mapping[str, int]) -> Any:  # noqa: ANN401  any YAML value
        """Return the session config of a replica as far as it is known; a file that needs a run for it is left out."""
        key, declared = "train.session_config", self._declaration.train.session_config
        if not names_file(declared):
            return self._values.render(declared, key, replica)
        literal = read_literal(Path(declared))
        if literal is not None:
            return self._values.render(literal, key, replica)
        text = self._values.render(Path(declared).read_text(), key, replica)
        return {} if is_template(text) else parse_text(text, form_of(declared))

    def _python(self) -> str | None:
        python = self._declaration.train.python
        if python is not None and shutil.which(python) is None:
            self._values.add_problem("train.python", f"{python} is no program on this host", "Correct the path.")
        return python

    def _destinations(self) -> Row:
        declaration, checkpoints = self._declaration, self._declaration.checkpoints
        home = self._settings.home / "runs" / f"{readable(declaration.dag_id)}--<run id>--<digest>"
        row: Row = {"run_folder": str(home), "publish": None, "version": None, "newest": None}
        initial = initial_checkpoint(declaration)
        row["initial_checkpoint"] = initial and self._begins_with(str(initial["source"]))
        if checkpoints.publish:
            base = self._values.render(checkpoints.publish, "checkpoints.publish").rstrip("/")
            row |= {"publish": base, "version": f"{base}/v=<UTC>-<hash>"}
            with self._noting("checkpoints.publish"):
                row["newest"] = self._newest(base)
        return row

    def _newest(self, base: str) -> str | None:
        """Return the newest version below ``base``, None where there is none or the base is not known yet."""
        if is_template(base):
            return None
        options = HdfsHook(checkpoints_conn_id(self._declaration)).storage_options(base)
        return latest_version(base, options=options, stall_seconds=10.0)

    def _begins_with(self, source: str) -> str:
        """Return the source of the checkpoint to begin with, rendered; look whether ``latest`` means any."""
        key = "checkpoints.initial_checkpoint"
        rendered = str(self._values.render(source, key))
        base, _, name = rendered.rstrip("/").rpartition("/")
        if name != LATEST or is_template(base) or self._declaration.checkpoints.allow_from_scratch:
            return rendered
        with self._noting(key):
            if self._newest(base) is None:
                todo = "Publish one, give a URI, or set allow_from_scratch for the first run."
                self._values.add_problem(key, f"there is no version below {base} to begin with", todo)
        return rendered


def space_problems(measured: Mapping[str, Measured], cache: Path) -> Iterator[Row]:
    """Compare what a run copies with the free space, and with what the cache can remove for it.

    :param measured: all inputs of the run by their URIs: what several stages read is copied once.
    """
    needed = sum(each.bytes - each.cached_bytes for each in measured.values())
    folder = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    other = sum(entry.size for entry in removable(cache_entries(cache), math.inf))
    other -= sum(each.idle_bytes for each in measured.values())
    if needed > free + max(other, 0):
        what = f"{format_bytes(needed)} are to be copied, but {folder} has {format_bytes(free)} free"
        what += f" and {format_bytes(other)} of the cache could go" if other > 0 else ""
        yield problem_row("inputs", what, "Free space, or set [airflow_tf] home to a larger disk.")


def _tasks(dag: DAG) -> list[Row]:
    return [
        {
            "task": task.task_id,
            "operator": task.operator_class.__name__ if task.is_mapped else type(task).__name__,
            "instances": len(task.expand_input.value["replica"]) if task.is_mapped else 1,
            "after": sorted(task.upstream_task_ids),
        }
        for task in dag.topological_sort()  # type: ignore[no-untyped-call]  # Airflow's own
    ]


def _has_ledger(url: str) -> bool:
    """Tell whether there is a ledger; looking at one that is not there would make it."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return True  # opening it says what is wrong
    return parsed.get_backend_name() != "sqlite" or Path(parsed.database or "").exists()
