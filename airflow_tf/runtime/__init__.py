"""What runs in the training process: TensorFlow yes, Airflow never.

``context()`` and ``strategy()`` are for users' programs; neither is needed by a program that reads its environment.
"""

from airflow_tf.runtime.context import RunContext, context
from airflow_tf.runtime.strategies import strategy
from airflow_tf.runtime.strategies.limits import Limits

__all__ = ["Limits", "RunContext", "context", "strategy"]
