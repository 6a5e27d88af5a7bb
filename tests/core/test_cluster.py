"""Roles and cluster specs: what is planned, what is refused, and in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tf.core.cluster import check_tf_config, plan_roles, replica_name, tasks, tf_config, trainers
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
    assert replica_name({}, 3) == "replica 3"


@given(st.integers(0, 1), st.integers(1, 6), st.integers(0, 3))
def test_every_replica_finds_its_own_address_under_its_task(chief: int, workers: int, ps: int) -> None:
    roles = {role: number for role, number in (("chief", chief), ("worker", workers), ("ps", ps)) if number}
    addresses = [f"127.0.0.1:{20000 + number}" for number in range(chief + workers + ps)]
    for replica, address in enumerate(addresses):
        config = json.loads(tf_config(roles, addresses, replica))
        assert config["cluster"][config["task"]["type"]][config["task"]["index"]] == address
        assert sorted(address for found in config["cluster"].values() for address in found) == addresses


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"task": {"type": "worker", "index": 0}}, "has no cluster"),
        ({"sparseCluster": {"worker": {"0": "a:1"}}, "task": {"type": "worker", "index": 0}}, "has no cluster"),
        ([], "has no cluster"),
        ({"cluster": {"worker_hosts": ["a:1"]}}, "Did you mean 'worker'"),
        ({"cluster": {"worker": {"0": "a:1"}}}, "worker is not a list"),
        ({"cluster": {"worker": "a:1"}}, "worker is not a list"),
        (
            {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "chief", "index": 0}},
            "task chief:0 is not in the cluster (worker: 2)",
        ),
        ({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}, "task worker:1 is not in"),
        ({"cluster": {"worker": ["a:1"]}}, "task None:None is not in"),
        ({"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}}, "has a:1 twice"),
        ({"cluster": {"worker": ["a:70000"]}, "task": {"type": "worker", "index": 0}}, "port 1 to 65535"),
        ({"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}, "must be host:port"),
        ({"cluster": {"worker": ["127.0.0.1:1", "b:1"]}, "task": {"type": "worker", "index": 0}}, "loopback"),
        ({"cluster": {"worker": ["localhost:1", "b:1"]}, "task": {"type": "worker", "index": 0}}, "loopback"),
    ],
)
def test_a_cluster_that_tensorflow_would_misread_is_refused(config: Any, says: str) -> None:
    with pytest.raises(DeclarationError) as error:
        check_tf_config(config)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "task", [{"type": "worker", "index": 0}, {"type": "worker", "index": "1"}, {"type": "evaluator", "index": 0}]
)
def test_a_cluster_that_works_is_taken(task: dict[str, Any]) -> None:
    check_tf_config({"cluster": {"worker": ["localhost:1", "127.0.0.1:2"]}, "task": task})
