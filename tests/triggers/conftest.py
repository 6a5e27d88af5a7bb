"""Fixtures: a private ledger that our triggers use, looks without pauses, and a log that can be read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_tf.core.settings import Settings
from airflow_tf.ledger import Ledger, open_ledger
from airflow_tf.triggers import devices, replica, shared


@pytest.fixture
def ledger(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    opened = open_ledger(settings)
    monkeypatch.setattr(shared, "shared_ledger", lambda: opened)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(devices, "RENEW_SECONDS", 0.02)
    monkeypatch.setattr(shared, "LONGEST_PAUSE_SECONDS", 0.02)
