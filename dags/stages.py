"""The DAG of stages.tf.yaml."""

from airflow_tf.pipeline import load_dags

load_dags(globals(), __file__, "stages.tf.yaml")
