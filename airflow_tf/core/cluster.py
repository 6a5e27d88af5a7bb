"""Roles of a gang's replicas, and the cluster spec that TensorFlow finds in ``TF_CONFIG``: pure."""

from __future__ import annotations

import difflib
import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_tf.core.errors import DeclarationError

CHIEF, WORKER, PS = "chief", "worker", "ps"
ROLES: dict[str, tuple[str, ...]] = {
    "sync": (CHIEF, WORKER),
    "async": (CHIEF, WORKER, PS),
    "v1_cluster": (CHIEF, WORKER, PS),
}
"""Gang strategy -> the roles that it knows, in the order of replica numbers: replica 0 leads."""

STRATEGY_VARIABLE = "AIRFLOW_TF_STRATEGY"
"""Environment variable in which a member of a cluster finds the declared strategy."""

GANG_STRATEGIES = tuple(ROLES)
STRATEGIES = ("independent", *GANG_STRATEGIES, "towers")

_REQUIRED: dict[str, tuple[str, ...]] = {"sync": (), "async": (CHIEF, WORKER, PS), "v1_cluster": (PS,)}
_TASK_TYPES = (CHIEF, WORKER, PS, "evaluator")
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Task:
    """What one replica is in its cluster."""

    role: str
    index: int

    def __str__(self) -> str:
        """As in ``worker 1``; there is one chief only."""
        return self.role if self.role == CHIEF else f"{self.role} {self.index}"


def plan_roles(strategy: str, roles: Mapping[str, int] | None, count: int) -> dict[str, int]:
    """Return role -> number of replicas in the order of replica numbers; empty where replicas form no cluster.

    :param roles: as declared; by default all replicas are workers.
    :raises DeclarationError: if the strategy or a role is unknown, or the numbers do not fit.
    """
    if strategy not in STRATEGIES:
        raise DeclarationError(f"strategy {strategy!r} is unknown", *_did_you_mean(strategy, STRATEGIES))
    if strategy not in ROLES:
        if roles:
            raise DeclarationError(f"strategy {strategy} has no roles", f"got {_listed(roles)}", "Remove 'roles'.")
        if strategy == "towers" and count != 1:
            todo = "Set devices.count to 1 and devices.per_replica to the number of devices."
            raise DeclarationError(f"strategy towers is one process, but count is {count}", todo=todo)
        return {}
    legal, given = ROLES[strategy], dict(roles or {WORKER: count})
    for role, number in given.items():
        if role not in legal:
            raise DeclarationError(f"strategy {strategy} has no role {role!r}", *_did_you_mean(role, legal))
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise DeclarationError(f"roles.{role}: {number!r} is not a number of replicas")
    found = {role: given[role] for role in legal if given.get(role)}
    _check_numbers(strategy, found, count)
    return found


def _check_numbers(strategy: str, roles: Mapping[str, int], count: int) -> None:
    missing = [role for role in _REQUIRED[strategy] if role not in roles]
    if missing or not (roles.keys() & {CHIEF, WORKER}):
        why = f"got {_listed(roles)}"
        todo = f"Write for instance roles: {{chief: 1, worker: {max(count - 2, 1)}, ps: 1}}."
        raise DeclarationError(f"strategy {strategy} needs a {(missing or [WORKER])[0]}", why, todo)
    if roles.get(CHIEF, 0) > 1:
        raise DeclarationError("a cluster has one chief", f"got {roles[CHIEF]}")
    if sum(roles.values()) != count:
        todo = "Make devices.count the sum of the roles."
        raise DeclarationError(f"roles have {sum(roles.values())} replicas, but count is {count}", todo=todo)


def tasks(roles: Mapping[str, int]) -> list[Task]:
    """Return what each replica is, by replica number."""
    return [Task(role, index) for role, number in roles.items() for index in range(number)]


def trainers(roles: Mapping[str, int], count: int) -> int:
    """Return how many of ``count`` replicas train: all but parameter servers."""
    return count - roles.get(PS, 0)


def replica_name(roles: Mapping[str, int], replica: int) -> str:
    """Return what a replica is called in messages."""
    return str(tasks(roles)[replica]) if roles else f"replica {replica}"


def tf_config(roles: Mapping[str, int], addresses: Sequence[str], replica: int) -> str:
    """Return ``TF_CONFIG`` of one replica, for ``addresses`` by replica number.

    :raises DeclarationError: if the cluster cannot work.
    """
    members = tasks(roles)
    cluster: dict[str, list[str]] = {role: [] for role in roles}
    for member, address in zip(members, addresses, strict=True):
        cluster[member.role].append(address)
    config = {"cluster": cluster, "task": {"type": members[replica].role, "index": members[replica].index}}
    check_tf_config(config)
    return json.dumps(config)


def check_tf_config(config: Any) -> None:  # noqa: ANN401 (whatever a user wrote)
    """Refuse what TensorFlow takes without a word, or explains by a stack trace in every task.

    :raises DeclarationError: naming the first thing that is wrong.
    """
    cluster = config.get("cluster") if isinstance(config, Mapping) else None
    if not isinstance(cluster, Mapping) or not cluster:
        why = "TensorFlow would train every replica on its own without saying so"
        raise DeclarationError("TF_CONFIG has no cluster", why, "Remove it: a gang gets its own.")
    for role, addresses in cluster.items():
        if role not in _TASK_TYPES:
            raise DeclarationError(f"TF_CONFIG has an unknown role {role!r}", *_did_you_mean(role, _TASK_TYPES))
        if not isinstance(addresses, Sequence) or isinstance(addresses, str):
            raise DeclarationError(f"TF_CONFIG: {role} is not a list of addresses", f"got {addresses!r}")
    _check_addresses([address for addresses in cluster.values() for address in addresses])
    _check_task(cluster, config.get("task"))


def _check_addresses(addresses: Sequence[Any]) -> None:
    hosts: set[str] = set()
    for address in addresses:
        host, _, port = str(address).rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) <= _MAX_PORT:
            raise DeclarationError(f"TF_CONFIG: {address!r} is no address", "it must be host:port, port 1 to 65535")
        hosts.add(host)
    repeated = {str(address) for address in addresses if addresses.count(address) > 1}
    if repeated:
        raise DeclarationError(f"TF_CONFIG has {min(repeated)} twice", "each task needs an address of its own")
    loopback = {host for host in hosts if _is_loopback(host)}
    if loopback and loopback != hosts:
        why = f"a task on {min(hosts - loopback)} cannot reach it there"
        raise DeclarationError(f"TF_CONFIG has the loopback address {min(loopback)} in a cluster of several hosts", why)


def _check_task(cluster: Mapping[str, Sequence[Any]], task: Any) -> None:  # noqa: ANN401 (whatever a user wrote)
    role, index = (task.get("type"), task.get("index")) if isinstance(task, Mapping) else (None, None)
    if role == "evaluator" and role not in cluster:
        return
    if not str(index).isdigit() or int(str(index)) >= len(cluster.get(str(role), ())):
        members = _listed({role: len(addresses) for role, addresses in cluster.items()})
        raise DeclarationError(f"TF_CONFIG: task {role}:{index} is not in the cluster ({members})")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{role}: {number}" for role, number in numbers.items())


def _did_you_mean(word: object, known: Sequence[str]) -> tuple[str, str]:
    """Return why and todo of an unknown name."""
    text = str(word)
    parts = [part for part in text.lower().split("_") if part in known]
    close = parts or difflib.get_close_matches(text.lower(), known, n=1)
    return f"it is one of: {', '.join(known)}", f"Did you mean {close[0]!r}?" if close else ""
