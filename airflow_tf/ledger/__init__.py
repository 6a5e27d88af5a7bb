"""The ledger: which gang holds which device, and how every attempt ended. SQLite or PostgreSQL."""

from __future__ import annotations

from airflow_tf.ledger.clock import Clock, boot_clock
from airflow_tf.ledger.store import Ledger, open_ledger

__all__ = ["Clock", "Ledger", "boot_clock", "open_ledger"]
