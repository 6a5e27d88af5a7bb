"""Fixtures: a private ledger that our triggers use, looks without pauses, and a log that can be read."""

from __future__ import annotations

import pytest

from airflow_tf.ledger import Ledger
from airflow_tf.triggers import devices, replica, shared


@pytest.fixture
def ledger(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr(shared, "shared_ledger", lambda: ledger)
    return ledger


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(devices, "RENEW_SECONDS", 0.02)
    monkeypatch.setattr(shared, "LONGEST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(shared, "AWAY_SECONDS", 0.0)
