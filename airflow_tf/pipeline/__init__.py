"""The declaration language: ``*.tf.yaml`` files become DAGs made of the package's public operators.

``load_dags`` is for a DAG file that makes declarations known to Airflow; the others are for DAGs written by hand.
"""

from airflow_tf.pipeline.build import build_dag, load_dag
from airflow_tf.pipeline.declaration import Loaded, load_declaration
from airflow_tf.pipeline.group import build_task_group, load_task_group
from airflow_tf.pipeline.loader import load_dags

__all__ = [
    "Loaded",
    "build_dag",
    "build_task_group",
    "load_dag",
    "load_dags",
    "load_declaration",
    "load_task_group",
]
