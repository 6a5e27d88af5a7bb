"""The strategy object of a replica: what makes the replicas of a gang, or the devices of one, train one model."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from airflow_tf.core.cluster import EVALUATOR, STRATEGY_VARIABLE
from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.launch import CLUSTER_VARIABLE
from airflow_tf.core.tf_config import read_tf_config
from airflow_tf.runtime.strategies import parameter_server, synchronous, towers, v1_cluster
from airflow_tf.runtime.strategies.limits import Limits

_LOG = logging.getLogger("airflow_tf.strategy")
_MAKERS: dict[str, Callable[[Limits], Any]] = {
    "sync": synchronous.make,
    "async": parameter_server.make,
    "v1_cluster": v1_cluster.make,
    "": towers.make,
}


def strategy(limits: Limits | None = None) -> Any:  # noqa: ANN401 (a tf.distribute.Strategy; TensorFlow has no types)
    """Return the ``tf.distribute`` strategy of this replica, as the declaration names it.

    Call it first: a cluster cannot be joined once TensorFlow has run an op. In an ``async`` gang it returns in the
    chief only; workers and parameter servers serve the chief until they are ended. A replica without a cluster, or an
    evaluator, mirrors its model on all its devices. A program that is started by hand gets the same from ``TF_CONFIG``
    alone.

    :param limits: after what time a peer counts as missing, dead or stuck.
    :raises DeclarationError: if the strategy has no such object, the cluster cannot work, or replicas are left out.
    """
    name = cluster_strategy()
    if name:
        _, warnings = read_tf_config(os.environ.get(CLUSTER_VARIABLE, "{}"), name)
        for warning in warnings:
            _LOG.warning("%s: %s", CLUSTER_VARIABLE, warning)
    return _MAKERS[name](limits or Limits())


def cluster_strategy() -> str:
    """Return the strategy of the cluster that this process belongs to, an empty string where it belongs to none.

    :raises DeclarationError: if the environment names an unknown strategy, or a cluster that cannot work.
    """
    declared = os.environ.get(STRATEGY_VARIABLE)
    named = declared if declared == "v1_cluster" else ""  # takes what others refuse; the rest is judged by who joins
    config = read_tf_config(os.environ[CLUSTER_VARIABLE], named)[0] if CLUSTER_VARIABLE in os.environ else {}
    if config.get("task", {}).get("type") == EVALUATOR:
        return ""
    if declared is not None:
        if declared not in _MAKERS:
            raise DeclarationError(f"{STRATEGY_VARIABLE}={declared} is unknown", f"it is one of {', '.join(_MAKERS)}")
        return declared
    if not config:
        return ""
    return "async" if "ps" in config["cluster"] else "sync"
