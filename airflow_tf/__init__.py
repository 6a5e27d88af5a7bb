"""Declarative TensorFlow training on GPU hosts from HDFS data, for Apache Airflow."""

__version__ = "0.1.0"
