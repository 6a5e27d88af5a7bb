"""The DAG of towers.tf.yaml."""

from airflow_tf.pipeline import load_dags

load_dags(globals(), __file__, "towers.tf.yaml")
