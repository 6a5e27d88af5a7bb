"""The DAG of parameter_server.tf.yaml."""

from airflow_tf.pipeline import load_dags

load_dags(globals(), __file__, "parameter_server.tf.yaml")
