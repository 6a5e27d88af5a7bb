"""The DAG of sync.tf.yaml."""

from airflow_tf.pipeline import load_dags

load_dags(globals(), __file__, "sync.tf.yaml")
