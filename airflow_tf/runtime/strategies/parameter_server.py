"""``async``: a chief schedules steps on workers, which read and update variables that parameter servers hold."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, NoReturn

from airflow_tf.runtime import keras_fit
from airflow_tf.runtime.strategies.limits import Limits


def make(_: Limits) -> Any:  # noqa: ANN401 (a tf.distribute.Strategy; TensorFlow has no types)
    """Return a ParameterServerStrategy in the chief; serve it, without returning, everywhere else.

    The constructor waits for every worker and server. A lost worker's steps are scheduled on the others; a lost
    server is an UnavailableError in the chief, after which the gang begins again from the last checkpoint.
    """
    tf = importlib.import_module("tensorflow")
    os.environ["GRPC_FAIL_FAST"] = "use_caller"  # a call to a task that is not up yet waits for it
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in {"worker", "ps"}:
        _serve(tf, resolver)
    keras_fit.refuse_with_parameter_servers()
    return tf.distribute.ParameterServerStrategy(resolver)


def _serve(tf: Any, resolver: Any) -> NoReturn:  # noqa: ANN401 (TensorFlow has no types)
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    sys.stdout.write(f"{resolver.task_type} {resolver.task_id} serves the chief\n")
    sys.stdout.flush()
    server.join()
    raise SystemExit(0)
