"""Roles: what is planned, what is refused, and in which words."""

from __future__ import annotations

import pytest

from airflow_tf.core.cluster import plan_roles, replica_name, sharers, tasks, trainers
from airflow_tf.core.errors import DeclarationError


@pytest.mark.parametrize(
    ("strategy", "roles", "count", "planned"),
    [
        ("independent", None, 4, {}),
        ("towers", None, 1, {}),
        ("sync", None, 3, {"worker": 3}),
        ("sync", {"worker": 2, "chief": 1}, 3, {"chief": 1, "worker": 2}),
        ("async", {"ps": 1, "worker": 2, "chief": 1}, 4, {"chief": 1, "worker": 2, "ps": 1}),
        ("v1_cluster", {"worker": 2, "ps": 1}, 3, {"worker": 2, "ps": 1}),
        ("v1_cluster", {"chief": 1, "worker": 0, "ps": 1}, 2, {"chief": 1, "ps": 1}),
        ("sync", {"evaluator": 1, "worker": 2}, 3, {"worker": 2, "evaluator": 1}),
    ],
)
def test_roles_are_planned_in_the_order_of_replica_numbers(
    strategy: str, roles: dict[str, int] | None, count: int, planned: dict[str, int]
) -> None:
    found = plan_roles(strategy, roles, count)
    assert list(found.items()) == list(planned.items())


@pytest.mark.parametrize(
    ("strategy", "roles", "count", "says"),
    [
        ("synk", None, 2, "Did you mean 'sync'"),
        ("independent", {"worker": 2}, 2, "has no roles"),
        ("towers", None, 2, "one process, but count is 2"),
        ("sync", {"worker_hosts": 2}, 2, "Did you mean 'worker'"),
        ("v1_cluster", {"ps_hosts": 1, "worker": 1}, 2, "Did you mean 'ps'"),
        ("sync", {"worker": 1, "ps": 1}, 2, "strategy sync has no role 'ps'"),
        ("sync", {"worker": -1}, 2, "not a number of replicas"),
        ("sync", {"worker": True}, 1, "not a number of replicas"),
        ("sync", {"worker": 3}, 4, "roles have 3 replicas, but count is 4"),
        ("sync", {"chief": 2}, 2, "one chief"),
        ("sync", {"worker": 1, "evaluator": 2}, 3, "one evaluator"),
        ("sync", {"evaluator": 1}, 1, "needs a worker"),
        ("async", None, 4, "needs a chief: got worker: 4. Write for instance roles: {chief: 1, worker: 2, ps: 1}"),
        ("async", {"chief": 1, "ps": 1}, 2, "needs a worker"),
        ("v1_cluster", {"worker": 2}, 2, "needs a ps"),
        ("v1_cluster", {"ps": 2}, 2, "needs a worker"),
    ],
)
def test_roles_that_cannot_work_are_refused(strategy: str, roles: dict[str, int] | None, count: int, says: str) -> None:
    with pytest.raises(DeclarationError) as error:
        plan_roles(strategy, roles, count)
    assert says in str(error.value)


def test_replicas_are_named_by_their_task() -> None:
    roles = {"chief": 1, "worker": 2, "ps": 1}
    assert [str(task) for task in tasks(roles)] == ["chief", "worker 0", "worker 1", "ps 0"]
    assert replica_name(roles, 3) == "ps 0"
    assert trainers(roles, 4) == 3
    assert trainers(roles | {"evaluator": 1}, 5) == 3
    assert trainers({}, 4) == 4
    assert replica_name({}, 3) == "replica 3"


@pytest.mark.parametrize(
    ("strategy", "roles", "count", "number"),
    [
        ("independent", {}, 4, 4),
        ("towers", {}, 1, 1),
        ("sync", {"worker": 3}, 3, 3),
        ("sync", {"chief": 1, "worker": 2, "evaluator": 1}, 4, 3),
        ("v1_cluster", {"worker": 2, "ps": 2}, 4, 2),
        ("v1_cluster", {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}, 5, 3),
    ],
)
def test_an_input_is_shared_by_those_that_train(strategy: str, roles: dict[str, int], count: int, number: int) -> None:
    assert sharers(strategy, roles, count) == number
    assert all(task.role in {"chief", "worker"} for task in tasks(roles)[:number])  # they come first


def test_no_input_is_shared_where_one_program_reads_for_all() -> None:
    with pytest.raises(DeclarationError, match="cannot be shared in an async gang: the workers read what the chief"):
        sharers("async", {"chief": 1, "worker": 2, "ps": 1}, 4)
