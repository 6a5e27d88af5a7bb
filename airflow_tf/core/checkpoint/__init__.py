"""Checkpoints of ``tf.train.Checkpoint`` and ``Saver`` read, verified and written without TensorFlow, nor numpy.

Only :mod:`.average` needs numpy.
"""

from __future__ import annotations

from airflow_tf.core.checkpoint.bundle import BundleReader, BundleWriter, Entry
from airflow_tf.core.checkpoint.completeness import LatestCheckpoint, SkippedCheckpoint, latest_complete, verify

__all__ = [
    "BundleReader",
    "BundleWriter",
    "Entry",
    "LatestCheckpoint",
    "SkippedCheckpoint",
    "latest_complete",
    "verify",
]
