"""The DAG of flights.tf.yaml."""

from airflow_tf.pipeline import load_declarations

load_declarations(globals(), __file__, "flights.tf.yaml")
