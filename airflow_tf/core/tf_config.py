"""``TF_CONFIG``: what TensorFlow reads to find its cluster, made for our gangs, judged where others made it: pure."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_tf.core.cluster import CHIEF, EVALUATOR, PS, WORKER, did_you_mean, listed, tasks
from airflow_tf.core.errors import DeclarationError

_TASK_TYPES = (CHIEF, WORKER, PS, EVALUATOR)
_FREE_NAMES = "v1_cluster"
"""A plain server of TensorFlow 1 takes any job names, and numbers with gaps."""

_NEEDED: dict[str, tuple[str, ...]] = {"async": (PS, CHIEF, WORKER), "v1_cluster": (PS,)}
_MAX_PORT = 65535


def tf_config(roles: Mapping[str, int], addresses: Sequence[str], replica: int) -> str:
    """Return ``TF_CONFIG`` of one replica, for ``addresses`` by replica number.

    :raises DeclarationError: if the cluster cannot work.
    """
    config = cluster_of(roles, addresses, replica)
    check_tf_config(config)
    return json.dumps(config)


def cluster_of(roles: Mapping[str, int], addresses: Sequence[str], replica: int) -> dict[str, Any]:
    """Return the cluster as one replica sees it, and its task there.

    An evaluator is in nobody's cluster, for a cluster waits for its members; its own has nobody else.
    """
    members = tasks(roles)
    own = members[replica]
    cluster: dict[str, list[str]] = {}
    for member, address in zip(members, addresses, strict=True):
        if (member.role == EVALUATOR) == (own.role == EVALUATOR):
            cluster.setdefault(member.role, []).append(address)
    return {"cluster": cluster, "task": {"type": own.role, "index": own.index}}


def read_tf_config(text: str, strategy: str = "") -> tuple[dict[str, Any], list[str]]:
    """Parse ``TF_CONFIG`` and return it with what :func:`check_tf_config` has to say.

    :raises DeclarationError: if it is not JSON, or as :func:`check_tf_config`.
    """
    try:
        config = json.loads(text)
    except ValueError as error:
        raise DeclarationError("TF_CONFIG is not JSON", str(error), "Make it by json.dumps, not by str.") from error
    return config, check_tf_config(config, strategy)


def check_tf_config(config: Any, strategy: str = "") -> list[str]:  # noqa: ANN401 (whatever a user wrote)
    """Refuse what TensorFlow takes without a word, or explains by a stack trace in every task, or never.

    :param strategy: the strategy that will use it; an empty string where that is the program's own business.
    :return: what is legal there and probably wrong.
    :raises DeclarationError: naming the first thing that is wrong.
    """
    cluster = config.get("cluster") if isinstance(config, Mapping) else None
    if not isinstance(cluster, Mapping) or not cluster:
        why = "TensorFlow would train every replica on its own without saying so"
        raise DeclarationError("TF_CONFIG has no cluster", why, "Remove it: a gang gets its own.")
    warnings = _check_names(cluster, strategy)
    members = {role: _members(role, addresses, strategy, warnings) for role, addresses in cluster.items()}
    _check_addresses([address for found in members.values() for address in found.values()])
    role = _check_task(members, config.get("task"), warnings)
    _check_strategy(members, role, strategy, warnings)
    return warnings


def _check_names(cluster: Mapping[str, Any], strategy: str) -> list[str]:
    unknown = [role for role in cluster if role not in _TASK_TYPES]
    if unknown and strategy != _FREE_NAMES:
        raise DeclarationError(f"TF_CONFIG has an unknown role {unknown[0]!r}", *did_you_mean(unknown[0], _TASK_TYPES))
    known = {"master": "'master' is TensorFlow 1's name of the chief"}
    return [known.get(role, f"role {role!r} is none of {', '.join(_TASK_TYPES)}") for role in unknown]


def _members(role: str, addresses: Any, strategy: str, warnings: list[str]) -> dict[int, Any]:  # noqa: ANN401
    """Return the addresses of a role by task index."""
    if isinstance(addresses, Sequence) and not isinstance(addresses, str):
        return dict(enumerate(addresses))
    if isinstance(addresses, Mapping) and strategy == _FREE_NAMES and all(str(key).isdigit() for key in addresses):
        warnings.append(f"{role} is a map of indices: a session that names a missing one waits for it")
        return {int(key): address for key, address in addresses.items()}
    raise DeclarationError(f"TF_CONFIG: {role} is not a list of addresses", f"got {addresses!r}")


def _check_addresses(addresses: Sequence[Any]) -> None:
    hosts: set[str] = set()
    for address in addresses:
        host, _, port = str(address).rpartition(":")
        if not host or "/" in host or not port.isdigit() or not 0 < int(port) <= _MAX_PORT:
            why = "it must be host:port, port 1 to 65535, without grpc://"
            raise DeclarationError(f"TF_CONFIG: {address!r} is no address", why)
        hosts.add(host)
    repeated = {str(address) for address in addresses if addresses.count(address) > 1}
    if repeated:
        raise DeclarationError(f"TF_CONFIG has {min(repeated)} twice", "each task needs an address of its own")
    loopback = {host for host in hosts if _is_loopback(host)}
    if loopback and loopback != hosts:
        why = f"a task on {min(hosts - loopback)} cannot reach it there"
        raise DeclarationError(f"TF_CONFIG has the loopback address {min(loopback)} in a cluster of several hosts", why)


def _check_task(members: Mapping[str, Mapping[int, Any]], task: Any, warnings: list[str]) -> str:  # noqa: ANN401
    """Return the role of the task."""
    role, index = (task.get("type"), task.get("index")) if isinstance(task, Mapping) else (None, None)
    if role == EVALUATOR and role not in members:
        return EVALUATOR
    if not str(index).isdigit() or int(str(index)) not in members.get(str(role), ()):
        found = listed({role: len(addresses) for role, addresses in members.items()})
        raise DeclarationError(f"TF_CONFIG: task {role}:{index} is not in the cluster ({found})")
    if isinstance(index, str):
        warnings.append(f"the task's index is the text {index!r}, not a number")
    return str(role)


def _check_strategy(members: Mapping[str, Any], role: str, strategy: str, warnings: list[str]) -> None:
    """Refuse a cluster in which the strategy would wait without end, or train apart."""
    if strategy == "sync":
        if role == EVALUATOR:
            why = "an evaluator is a process of its own, outside the cluster"
            raise DeclarationError("TF_CONFIG: an evaluator cannot train in sync", why)
        if PS in members:
            why = "the workers would wait for it without end: it would have to lead them"
            todo = "Remove it, or use strategy: async."
            raise DeclarationError("TF_CONFIG has a ps in a cluster that trains in sync", why, todo)
    if members.keys() == {EVALUATOR} and strategy == _FREE_NAMES:
        return  # of ours it is in nobody else's cluster
    missing = [needed for needed in _NEEDED.get(strategy, ()) if needed not in members]
    if missing and not (strategy == _FREE_NAMES and members.keys() - set(_TASK_TYPES)):
        why = f"strategy {strategy} needs it; there are: {', '.join(members)}"
        raise DeclarationError(f"TF_CONFIG has no {', no '.join(missing)}", why)
    if EVALUATOR in members and role != EVALUATOR:
        warnings.append("an evaluator is in the cluster of a task that trains, which may wait for it")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
