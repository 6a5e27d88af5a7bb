"""The DAG of mirrored.tf.yaml."""

from airflow_tf.pipeline import load_dags

load_dags(globals(), __file__, "mirrored.tf.yaml")
