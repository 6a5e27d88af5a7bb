"""Checkpoints of ``tf.train.Checkpoint`` and ``Saver`` read, verified, averaged and written without TensorFlow."""

from __future__ import annotations

from airflow_tf.core.checkpoint.average import AverageReport, average
from airflow_tf.core.checkpoint.bundle import BundleReader, BundleWriter, Entry
from airflow_tf.core.checkpoint.completeness import LatestCheckpoint, SkippedCheckpoint, latest_complete, verify

__all__ = [
    "AverageReport",
    "BundleReader",
    "BundleWriter",
    "Entry",
    "LatestCheckpoint",
    "SkippedCheckpoint",
    "average",
    "latest_complete",
    "verify",
]
