"""Public helpers for testing pipelines: a real HDFS on this machine with its pytest fixture, a simulated NVML."""
