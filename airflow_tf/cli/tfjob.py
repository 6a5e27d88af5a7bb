"""A Kubeflow TFJob as a declaration: what has a counterpart is carried over, all else is named with what to do."""

from __future__ import annotations

import copy
import json
import re
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from airflow_tf.cli.output import command
from airflow_tf.core.errors import DeclarationError
from airflow_tf.pipeline.fields import RESERVED_VARIABLES

_ROLES = {"Chief": "chief", "Master": "chief", "Worker": "worker", "PS": "ps", "Evaluator": "evaluator"}
_GPU = "nvidia.com/gpu"
_ADVICE = {
    "image": "the training environment is an interpreter on the host: train.python",
    "volumeMounts": "data comes by 'inputs', results go by 'checkpoints.publish'",
    "volumes": "data comes by 'inputs', results go by 'checkpoints.publish'",
    "workingDir": "a program runs in the folder of its attempt; give it paths by arguments",
    "valueFrom": "write the value, or a template such as {{ var.value.name }}",
    "envFrom": "write the variables under train.environment",
    "command": "all replicas run the program of the first role: tell them apart by TF_CONFIG",
    "args": "all replicas get the arguments of the first role; replica.index may be used in them",
    "env": "all replicas get the environment of the first role; replica.index may be used in it",
    "cpu": "replicas take CPU slots: devices.kind cpu",
    "requests": "devices are reserved whole: devices.per_replica, devices.min_free_memory",
    "ports": "a gang gets ports of its own for each attempt",
    "nodeSelector": "devices.names and devices.uuids choose devices; Airflow's queues choose hosts",
    "tolerations": "Airflow's queues choose hosts",
    "cleanPodPolicy": "no process of a run is left when it has ended",
    "ttlSecondsAfterFinished": "run folders go by 'airflow tf prune'",
    "schedulingPolicy": "a gang gets all its devices or none; devices.priority is its place in the queue",
    "namespace": "there is none",
}
"""Key of a TFJob -> where what it is for is found here."""

_ARGUMENT = re.compile(r"--([A-Za-z_][A-Za-z0-9_.-]*)(?:=(.*))?", re.DOTALL)
_REFERENCE = re.compile(r"\$\([A-Za-z_][A-Za-z0-9_.-]*\)")
_REFERENCE_TODO = "Kubernetes puts a variable's value in for $(NAME): write it out, or as a template"
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)([KMGT]i?|k)?")


@dataclass(slots=True)
class Imported:
    """A declaration as plain data, and what of the job is not in it: path -> what to do."""

    declaration: dict[str, Any]
    left: dict[str, str] = field(default_factory=dict)

    def to_yaml(self) -> str:
        """Return the text of the declaration, with what is left as comments before it."""
        notes = "".join(f"# not imported: {path}: {todo}\n" for path, todo in self.left.items())
        return notes + yaml.safe_dump(self.declaration, sort_keys=False, allow_unicode=True)


@command
def import_tfjob(args: Namespace) -> None:
    """Print the declaration that a TFJob becomes."""
    print(convert(_read(Path(args.file))).to_yaml(), end="")  # noqa: T201


def _read(file: Path) -> dict[str, Any]:
    try:
        documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{file} is not YAML", str(error), "Give the file of a TFJob.") from error
    jobs = [each for each in documents if isinstance(each, dict) and each.get("kind") == "TFJob"]
    if len(jobs) != 1:
        raise DeclarationError(f"{file} has {len(jobs)} documents of kind TFJob", todo="Give a file with one.")
    return jobs[0]


def convert(job: dict[str, Any]) -> Imported:
    """Return the declaration of a TFJob.

    :raises DeclarationError: if it has no replicas to run.
    """
    # A copy in which nothing is shared through YAML's anchors; null is what is not there, as Kubernetes reads it.
    rest = _without_nulls(json.loads(json.dumps(job, default=str)))
    for key in ("apiVersion", "kind"):
        rest.pop(key, None)
    specs = _mapping(_pop(rest, "spec", "tfReplicaSpecs"))
    roles = {_ROLES[name]: spec for name, spec in specs.items() if name in _ROLES and isinstance(spec, dict)}
    unknown = {name: spec for name, spec in specs.items() if name not in _ROLES}
    if not roles:
        raise DeclarationError("the TFJob has no tfReplicaSpecs", todo=f"Known are {', '.join(_ROLES)}.")
    counts = {name: _number(spec.pop("replicas", 1), f"replicas of {name}") for name, spec in roles.items()}
    counts = {name: counts[name] for name in dict.fromkeys(_ROLES.values()) if counts.get(name)}
    if not counts:
        raise DeclarationError("the TFJob has no replicas", "all its roles have 0", "Give one of them 1 or more.")
    result = Imported({"dag_id": _pop(rest, "metadata", "name") or "tfjob", "schedule": None})
    result.declaration["devices"] = _devices(roles, counts, result.left)
    result.declaration["train"] = _train(rest, roles, counts, result.left)
    for path, key in _leaves(rest, ""):
        result.left.setdefault(path, _ADVICE.get(key, "it has no counterpart"))
    for name, spec in (roles | unknown).items():
        for path, key in _leaves(spec, f"spec.tfReplicaSpecs.{name}"):
            result.left.setdefault(path, _ADVICE.get(key, "it has no counterpart"))
    return result


def _pop(data: Any, *path: str) -> Any:  # noqa: ANN401  any YAML value
    """Take a value out of nested mappings; None if it is not there."""
    for key in path[:-1]:
        data = data.get(key) if isinstance(data, dict) else None
    return data.pop(path[-1], None) if isinstance(data, dict) else None


def _without_nulls(value: Any) -> Any:  # noqa: ANN401  any JSON value
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value if item is not None] if isinstance(value, list) else value


def _mapping(value: Any) -> dict[str, Any]:  # noqa: ANN401  any JSON value
    """Return ``value`` if it is a mapping; what is none stays where it is, and is named with the rest."""
    return value if isinstance(value, dict) else {}


def _number(value: Any, noun: str) -> int:  # noqa: ANN401  any JSON value
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise DeclarationError(f"{noun}: {value!r} is no whole number", todo="Correct the TFJob.") from error


def _container(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the container that trains; others stay in the list."""
    listed = _mapping(_mapping(spec.get("template")).get("spec")).get("containers")
    found = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return next((each for each in found if each.get("name") == "tensorflow"), found[0] if found else {})


def _words(value: Any) -> list[str]:  # noqa: ANN401  any JSON value
    return [str(word) for word in value] if isinstance(value, list) else [] if value is None else [str(value)]


def _devices(roles: dict[str, dict[str, Any]], counts: dict[str, int], left: dict[str, str]) -> dict[str, Any]:
    given = {name: _pop(_container(spec), "resources", "limits", _GPU) for name, spec in roles.items()}
    gpus = {name: _number(number or 0, f"{_GPU} of {name}") for name, number in given.items()}
    most = max(gpus.values())
    for name, number in gpus.items():
        if number != most:
            todo = f"every replica gets {most}; keep this role off them by session_config.{name}"
            left[f"spec.tfReplicaSpecs.{name}: {number} x {_GPU}"] = todo
    devices: dict[str, Any] = {"count": sum(counts.values()), "kind": "gpu" if most else "cpu"}
    return devices | ({"per_replica": most} if most > 1 else {})


def _train(
    rest: dict[str, Any], roles: dict[str, dict[str, Any]], counts: dict[str, int], left: dict[str, str]
) -> dict[str, Any]:
    leader = next(name for name in counts)
    container = _container(roles[leader])
    program = {key: copy.deepcopy(container.get(key)) for key in ("command", "args", "env")}
    words = _words(container.pop("command", None)) + _words(container.pop("args", None))
    train: dict[str, Any] = {}
    script = next((word for word in words if word.endswith(".py")), None)
    if script is None:
        left[f"spec.tfReplicaSpecs.{leader}: command"] = f"no script in {words}: write train.entrypoint"
    else:
        words = words[words.index(script) + 1 :]
        left[f"spec.tfReplicaSpecs.{leader}: {script}"] = "put the program beside the declaration"
    train["entrypoint"] = Path(script or "train.py").name
    if sum(counts.values()) > 1:
        train |= {"strategy": _strategy(counts), "roles": counts}
    arguments, environment = _arguments(words, left), _environment(container, left)
    train |= _given("arguments", arguments) | _given("environment", environment)
    for key, values in (("argument", arguments), ("env", environment)):
        left |= {
            f"{key} {name}: {value}": _REFERENCE_TODO for name, value in values.items() if _REFERENCE.search(value)
        }
    deadline, limit = _pop(rest, "spec", "runPolicy", "activeDeadlineSeconds"), _memory(roles)
    train |= _given("execution_timeout", deadline) | _given("memory_limit", limit)
    train |= _given("restarts", _pop(rest, "spec", "runPolicy", "backoffLimit"))
    for name, spec in roles.items():
        _drop_same(_container(spec), program)
        policy = spec.pop("restartPolicy", "Never")
        if policy != "Never" and "restarts" not in train:
            left[f"spec.tfReplicaSpecs.{name}.restartPolicy"] = f"{policy} without backoffLimit: choose train.restarts"
    if _pop(rest, "spec", "successPolicy") != "AllWorkers" and len(counts) > 1 and counts.get("worker"):
        left["spec.successPolicy"] = "a TFJob ends with its chief or worker 0; here see train.success"
    return train


def _given(key: str, value: Any) -> dict[str, Any]:  # noqa: ANN401  any YAML value
    return {key: value} if value else {}


def _strategy(counts: dict[str, int]) -> str:
    """Return the strategy for these roles; parameter servers without a chief are TensorFlow 1's."""
    if "ps" not in counts:
        return "sync"
    return "async" if "chief" in counts else "v1_cluster"


def _drop_same(container: dict[str, Any], program: dict[str, Any]) -> None:
    """Forget the container's name, and what of its program is the leader's."""
    container.pop("name", None)
    for key, value in program.items():
        if container.get(key) == value:
            container.pop(key, None)


def _arguments(words: list[str], left: dict[str, str]) -> dict[str, str]:
    """Read ``--key=value`` and ``--key value``; flags and positional words have no counterpart."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        match = _ARGUMENT.fullmatch(word)
        if match is None:
            left[f"argument {word!r}"] = "arguments are --key=value: change the program, or put it in the environment"
        elif match.group(2) is not None:
            found[match.group(1)] = match.group(2)
        elif rest and not rest[0].startswith("--"):
            found[match.group(1)] = rest.pop(0)
        else:
            left[f"argument {word!r}"] = "a flag without a value: arguments are --key=value"
    return found


def _environment(container: dict[str, Any], left: dict[str, str]) -> dict[str, str]:
    found = {}
    rows = container.pop("env", None)
    for row in filter(_mapping, rows if isinstance(rows, list) else ()):
        name = str(row.get("name"))
        if "value" not in row:
            left[f"env {name}"] = _ADVICE["valueFrom"]
        elif name in RESERVED_VARIABLES:
            left[f"env {name}"] = "it is set from the run and its devices"
        else:
            found[name] = str(row["value"])
    return found


def _memory(roles: dict[str, dict[str, Any]]) -> str | None:
    """Return the limit that all roles have, in our units: Kubernetes counts ``M`` by 1000, and ``Mi`` by 1024."""
    resources = [_mapping(_container(spec).get("resources")) for spec in roles.values()]
    limits = [_mapping(each.get("limits")).get("memory") for each in resources]
    match = _QUANTITY.fullmatch(str(limits[0]))
    if match is None or any(limit != limits[0] for limit in limits):
        return None
    for spec in roles.values():
        _pop(_container(spec), "resources", "limits", "memory")
    return f"{match.group(1)}{(match.group(2) or '').upper().replace('I', 'i')}B"


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401  any YAML value
    """Yield path and advice key of what is left; a key with advice of its own is one thing."""
    if isinstance(value, dict):
        for key, item in value.items():
            here = f"{path}.{key}" if path else str(key)
            if key in _ADVICE:
                yield here, key
            else:
                yield from _leaves(item, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    elif value is not None and path:
        yield path, path.rpartition(".")[2]
