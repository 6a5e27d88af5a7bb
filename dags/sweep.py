"""The DAG of sweep.tf.yaml."""

from airflow_tf.pipeline import load_dags

load_dags(globals(), __file__, "sweep.tf.yaml")
