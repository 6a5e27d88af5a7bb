"""The devices page: how much of others' runs it shows, and what it says of a drained host."""

from __future__ import annotations

import pytest

from airflow_tf.core.identity import GangKey
from airflow_tf.ledger.read import QueueRow, ReservationRow
from airflow_tf.web.devices import devices_page

LABEL = GangKey("i", "secret", "manual__2026-12-03T07:00:00+00:00", "t").label


def device(reason="", state="busy"):
    row = {"host": "h", "host_id": "h-1", "device": "u", "kind": "cpu", "name": "n", "state": state}
    return row | {"memory_bytes": None, "free_bytes": None, "utilization_percent": None, "reason": reason}


def waits(reason):
    return QueueRow(1, "h", "k", "churn", "r", "t", "churn / r / t", (0,), 1, 0, 1.0, None, reason)


def test_of_a_dag_that_is_not_readable_only_the_holding_is_shown():
    held = ReservationRow(
        1, "k", "secret", "r", "t", "secret / r / t", 0, "confirmed", "h", "h-1", ("u",), 100, "now", 1, None, False
    )
    [shown] = devices_page([], [device(f"held by {LABEL}")], [held], [], {"churn"}).devices
    assert (shown.reason, shown.holders[0].gang.dag_id, shown.holders[0].state) == ("", "", "confirmed")
    [seen] = devices_page([], [device(f"held by {LABEL}")], [held], [], {"secret"}).devices
    assert (seen.reason, seen.holders[0].gang.dag_id) == (f"held by {LABEL}", "secret")


@pytest.mark.parametrize(
    ("reason", "is_shown"),
    [
        (f"cpu-0 held by {LABEL}[0] since 07:01 UTC", False),
        (f"before it in the queue: churn / r / t (1 device, waiting 3 s), {LABEL} (2 devices, waiting 1 s)", False),
        ("cpu-0 held by more-secret / r / t[0] since 07:01 UTC", False),
        ("cpu-0 held by churn / r / t[0] since 07:01 UTC", True),
        ("before it in the queue: churn / r / t (1 device, waiting 3 s), churn / s / t (2 devices)", True),
        ("cpu-0: 1 GiB of 2 GiB memory free", True),
    ],
)
def test_a_reason_that_names_a_gang_of_another_dag_is_hidden_also_when_that_gang_has_left(reason, is_shown):
    page = devices_page([], [device(reason)], [], [waits(reason)], {"churn", "ecret"})
    expected = reason if is_shown else ""
    assert (page.devices[0].reason, page.queue[0].reason) == (expected, expected)
