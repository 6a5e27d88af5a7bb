"""Roles of a gang's replicas: pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_tf.core.errors import DeclarationError

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"
ROLES: dict[str, tuple[str, ...]] = {
    "sync": (CHIEF, WORKER, EVALUATOR),
    "async": (CHIEF, WORKER, PS, EVALUATOR),
    "v1_cluster": (CHIEF, WORKER, PS, EVALUATOR),
}
"""Gang strategy -> the roles that it knows, in the order of replica numbers: replica 0 leads."""

TRAINING = (CHIEF, WORKER)
"""Roles that take steps. A parameter server serves them, an evaluator looks at their checkpoints."""

STRATEGY_VARIABLE = "AIRFLOW_TF_STRATEGY"
"""Environment variable in which a member of a cluster finds the declared strategy."""

GANG_STRATEGIES = tuple(ROLES)
STRATEGIES = ("independent", *GANG_STRATEGIES, "towers")

_SINGLE = (CHIEF, EVALUATOR)
_REQUIRED: dict[str, tuple[str, ...]] = {"sync": (), "async": (CHIEF, WORKER, PS), "v1_cluster": (PS,)}


@dataclass(frozen=True, slots=True)
class Task:
    """What one replica is in its cluster."""

    role: str
    index: int

    def __str__(self) -> str:
        """As in ``worker 1``; there is at most one chief, and one evaluator."""
        return self.role if self.role in _SINGLE else f"{self.role} {self.index}"


def plan_roles(strategy: str, roles: Mapping[str, int] | None, count: int) -> dict[str, int]:
    """Return role -> number of replicas in the order of replica numbers; empty where replicas form no cluster.

    :param roles: as declared; by default all replicas are workers.
    :raises DeclarationError: if the strategy or a role is unknown, or the numbers do not fit.
    """
    if strategy not in STRATEGIES:
        raise DeclarationError(f"strategy {strategy!r} is unknown", *did_you_mean(strategy, STRATEGIES))
    if strategy not in ROLES:
        if roles:
            raise DeclarationError(f"strategy {strategy} has no roles", f"got {listed(roles)}", "Remove 'roles'.")
        if strategy == "towers" and count != 1:
            todo = "Set devices.count to 1 and devices.per_replica to the number of devices."
            raise DeclarationError(f"strategy towers is one process, but count is {count}", todo=todo)
        return {}
    legal, given = ROLES[strategy], dict(roles or {WORKER: count})
    for role, number in given.items():
        if role not in legal:
            raise DeclarationError(f"strategy {strategy} has no role {role!r}", *did_you_mean(role, legal))
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise DeclarationError(f"roles.{role}: {number!r} is not a number of replicas")
    found = {role: given[role] for role in legal if given.get(role)}
    _check_numbers(strategy, found, count)
    return found


def _check_numbers(strategy: str, roles: Mapping[str, int], count: int) -> None:
    missing = [role for role in _REQUIRED[strategy] if role not in roles]
    if missing or not (roles.keys() & {CHIEF, WORKER}):
        why = f"got {listed(roles)}"
        todo = f"Write for instance roles: {{chief: 1, worker: {max(count - 2, 1)}, ps: 1}}."
        raise DeclarationError(f"strategy {strategy} needs a {(missing or [WORKER])[0]}", why, todo)
    for role in _SINGLE:
        if roles.get(role, 0) > 1:
            raise DeclarationError(f"a cluster has one {role}", f"got {roles[role]}")
    if sum(roles.values()) != count:
        todo = "Make devices.count the sum of the roles."
        raise DeclarationError(f"roles have {sum(roles.values())} replicas, but count is {count}", todo=todo)


def tasks(roles: Mapping[str, int]) -> list[Task]:
    """Return what each replica is, by replica number."""
    return [Task(role, index) for role, number in roles.items() for index in range(number)]


def trainers(roles: Mapping[str, int], count: int) -> int:
    """Return how many of ``count`` replicas train."""
    return sum(roles.get(role, 0) for role in TRAINING) if roles else count


def sharers(strategy: str, roles: Mapping[str, int], count: int) -> int:
    """Return how many of ``count`` replicas get a share of an input: those that train, which come first by number.

    An evaluator and parameter servers see all of it.

    :raises DeclarationError: in an ``async`` gang, whose chief's program makes the datasets of all workers: of its own
        folder.
    """
    if strategy == "async":
        raise DeclarationError(
            "an input cannot be shared in an async gang",
            "the workers read what the chief's program names, and it sees one folder only",
            "Leave `shard` out, and let the dataset function share: dataset.shard(n, input_context.input_pipeline_id).",
        )
    return trainers(roles, count)


def replica_name(roles: Mapping[str, int], replica: int) -> str:
    """Return what a replica is called in messages."""
    return str(tasks(roles)[replica]) if roles else f"replica {replica}"


def listed(numbers: Mapping[str, int]) -> str:
    """Return roles with their numbers, for messages."""
    return ", ".join(f"{role}: {number}" for role, number in numbers.items())


def did_you_mean(word: object, known: Sequence[str]) -> tuple[str, str]:
    """Return why an unknown name is wrong, and what to do."""
    text = str(word)
    parts = [part for part in text.lower().split("_") if part in known]
    close = parts or difflib.get_close_matches(text.lower(), known, n=1)
    return f"it is one of: {', '.join(known)}", f"Did you mean {close[0]!r}?" if close else ""
