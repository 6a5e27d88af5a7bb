"""Public helpers for testing pipelines: a real HDFS on this machine, and the pytest fixture that shares it."""
