"""What runs in the training process: TensorFlow yes, Airflow never. ``context()`` is for users' programs."""

from airflow_tf.runtime.context import RunContext, context

__all__ = ["RunContext", "context"]
