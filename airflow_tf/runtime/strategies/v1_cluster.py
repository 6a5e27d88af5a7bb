"""``v1_cluster``: every worker builds the graph and shares its variables through parameter servers, as TF1 did.

Such programs make their own ``tf.train.Server`` from ``TF_CONFIG`` and run as they were written; what a cluster needs
so that it neither waits nor ends for minutes is made TensorFlow's default before they start.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from collections.abc import Callable
from typing import Any

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.launch import CLUSTER_VARIABLE
from airflow_tf.core.tf_config import read_tf_config
from airflow_tf.runtime.strategies.limits import Limits

_LOG = logging.getLogger("airflow_tf.strategy")

STOP_GRACE_SECONDS = 5
"""TensorFlow waits for 120 s at the end of a SyncReplicas chief, for a thread that waits for a token."""

RECOVERY_WAIT_SECONDS = 1
"""TensorFlow looks every 30 s whether the chief has initialised the variables."""


def make(_: Limits) -> Any:  # noqa: ANN401 (as the other strategies)
    """Refuse: there is no strategy object.

    :raises DeclarationError: always.
    """
    raise DeclarationError(
        "strategy v1_cluster has no strategy object",
        "its programs make a tf.compat.v1.train.Server from TF_CONFIG",
        "Use tf.compat.v1.train.replica_device_setter and MonitoredTrainingSession, or strategy: async.",
    )


def prepare() -> None:
    """Give sessions and servers of this process device filters, a short recovery wait and a short grace at the end.

    A program's own TF_CONFIG may name other jobs, and numbers with gaps: a plain server takes them.

    Without the filters a session connects to *every* task, and waits without end for a worker that has finished.
    """
    config, warnings = read_tf_config(os.environ[CLUSTER_VARIABLE], "v1_cluster")
    for warning in warnings:
        _LOG.warning("%s: %s", CLUSTER_VARIABLE, warning)
    v1 = importlib.import_module("tensorflow").compat.v1
    filters = device_filters(config)
    manager = importlib.import_module("tensorflow.python.training.session_manager").SessionManager
    _wrap(manager, _defaults(recovery_wait_secs=RECOVERY_WAIT_SECONDS))
    _wrap(v1.train.Server, functools.partial(_filter, v1.ConfigProto, filters))
    for cls in (v1.Session, v1.InteractiveSession):
        _wrap(cls, functools.partial(_filter_session, v1.ConfigProto, filters))
    v1.train.MonitoredTrainingSession = functools.wraps(v1.train.MonitoredTrainingSession)(
        functools.partial(_monitored, v1.train.MonitoredTrainingSession)
    )


def device_filters(config: dict[str, Any]) -> list[str]:
    """Return the tasks that a task may see: parameter servers and itself; servers see everything.

    So does everybody in a cluster whose servers have another name.
    """
    role, index = config["task"]["type"], config["task"]["index"]
    return (
        [] if role in {"ps", "evaluator"} or "ps" not in config["cluster"] else ["/job:ps", f"/job:{role}/task:{index}"]
    )


def _monitored(original: Callable[..., Any], *args: Any, **options: Any) -> Any:  # noqa: ANN401 (a session)
    return original(*args, **{"stop_grace_period_secs": STOP_GRACE_SECONDS} | options)


def _wrap(cls: Any, change: Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]) -> None:  # noqa: ANN401
    original = cls.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: ANN401, N807
        original(self, *args, **change(args, options))

    cls.__init__ = __init__


def _defaults(**values: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]:
    return lambda _, options: values | options


def _filter(proto: Any, filters: list[str], args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """Add the filters to ``config`` unless it has its own, or was given by position (then it is the script's)."""
    config = proto()
    if options.get("config") is not None:
        config.CopyFrom(options["config"])
    if not config.device_filters:
        config.device_filters.extend(filters)
    return options if len(args) > 4 else options | {"config": config}  # noqa: PLR2004 (cluster, job, index, protocol)


def _filter_session(proto: Any, filters: list[str], args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """Do the same for a session of the cluster; one without target is local and has no peers."""
    target = args[0] if args else options.get("target", "")
    return _filter(proto, filters, (), options) if target and len(args) < 3 else options  # noqa: PLR2004
