"""``TF_CONFIG``: what our gangs are given, and what of others is taken, taken with a warning, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.tf_config import check_tf_config, read_tf_config, tf_config

CASES = [json.loads(line) for line in (Path(__file__).parent / "tf_configs.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("strategy", ["sync", "async", "v1_cluster"])
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_config_from_the_world_is_judged_for_each_strategy(case: dict[str, Any], strategy: str) -> None:
    found = case["tf_config"]
    text = found if isinstance(found, str) else json.dumps(found)
    verdict, _, says = case["expected"][strategy].partition(": ")
    if verdict == "reject":
        with pytest.raises(DeclarationError) as error:
            read_tf_config(text, strategy)
        assert says in str(error.value)
        return
    config, warnings = read_tf_config(text, strategy)
    assert config == found
    assert bool(warnings) == (verdict == "warn"), warnings
    for part in filter(None, says.split("; ")):
        assert part in "; ".join(warnings)


@given(st.integers(0, 1), st.integers(1, 6), st.integers(0, 3), st.integers(0, 1))
def test_every_replica_finds_its_own_address_and_no_evaluator_is_in_another_s_cluster(
    chief: int, workers: int, ps: int, evaluator: int
) -> None:
    numbers = (("chief", chief), ("worker", workers), ("ps", ps), ("evaluator", evaluator))
    roles = {role: number for role, number in numbers if number}
    addresses = [f"127.0.0.1:{20000 + number}" for number in range(sum(roles.values()))]
    training = addresses[: len(addresses) - evaluator]
    for replica, address in enumerate(addresses):
        config = json.loads(tf_config(roles, addresses, replica))
        assert config["cluster"][config["task"]["type"]][config["task"]["index"]] == address
        members = sorted(address for found in config["cluster"].values() for address in found)
        assert members == ([address] if config["task"]["type"] == "evaluator" else training)


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
    check_tf_config({"cluster": {"worker": ["localhost:1", "127.0.0.1:2"]}, "task": task}, "")
