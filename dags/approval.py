"""The DAG of approval.tf.yaml."""

from airflow_tf.pipeline import load_dags

load_dags(globals(), __file__, "approval.tf.yaml")
