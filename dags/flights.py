"""The DAG of flights.tf.yaml."""

from airflow_tf.pipeline import load_dags

load_dags(globals(), __file__, "flights.tf.yaml")
