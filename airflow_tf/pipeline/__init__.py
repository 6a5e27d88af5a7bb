"""The declaration language: ``*.tf.yaml`` files become DAGs made of the package's public operators."""

from airflow_tf.pipeline.loader import load_dags

__all__ = ["load_dags"]
