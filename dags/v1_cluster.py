"""The DAG of v1_cluster.tf.yaml."""

from airflow_tf.pipeline import load_dags

load_dags(globals(), __file__, "v1_cluster.tf.yaml")
