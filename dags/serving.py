"""The DAG of serving.tf.yaml."""

from airflow_tf.pipeline import load_dags

load_dags(globals(), __file__, "serving.tf.yaml")
