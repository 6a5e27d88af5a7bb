"""Who holds devices, who waits, and an operator's override."""

from __future__ import annotations

from datetime import datetime

import pytest

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.errors import LedgerError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Refused
from airflow_tf.devices.registry import read_all
from airflow_tf.supervisor.acquire import this_host


@pytest.fixture
def wait(ledger, installation, reserve):
    """Let a gang ask for two devices, of which one is held."""

    def call(dag_id):
        key = GangKey(ledger.ledger_id, dag_id, "run", "train")
        refused = ledger.reserve(key, DeviceRequest("cpu"), [0, 1], this_host(), read_all(installation, "cpu"))
        assert isinstance(refused, Refused)

    return call


def test_who_holds_devices_is_listed_with_every_field(airflow_tf, reserve, ledger):
    _, member = reserve("flights", 2)
    ledger.confirm(member, 4711)
    code, rows = airflow_tf("reservations", "--output", "json")
    assert code == 0
    for row in rows:
        assert len(row.pop("run")) == 8
        assert row.pop("host") == this_host().name
        assert datetime.fromisoformat(row.pop("since"))
    assert 0 < rows[1].pop("expires_in_seconds") <= 300
    common = {"reservation": member.reservation_id, "gang": "flights / run / train", "share_percent": 100}
    assert rows == [
        common | {"replica": 0, "state": "confirmed", "devices": ["cpu-0"], "supervisor_pid": 4711,
                  "expires_in_seconds": None},
        common | {"replica": 1, "state": "reserved", "devices": ["cpu-1"], "supervisor_pid": None},
    ]  # fmt: skip
    assert "flights / run / train[1]" in airflow_tf("reservations")[1]


def test_who_waits_is_listed_in_the_order_of_the_queue(airflow_tf, reserve, wait):
    assert airflow_tf("reservations", "--queue", "--output", "json") == (0, [])
    reserve("flights")
    wait("trains")
    wait("ships")
    _, rows = airflow_tf("reservations", "--queue", "--output", "json")
    assert [(row["position"], row["gang"]) for row in rows] == [
        (1, "trains / run / train"),
        (2, "ships / run / train"),
    ]
    first = rows[0]
    assert (first["wanted_devices"], first["replicas"], first["priority"]) == (2, [0, 1], 0)
    assert first["waited_seconds"] >= 0
    assert "flights / run / train[0]" in first["reason"]
    assert "2 for 2 replicas" in airflow_tf("reservations", "--queue")[1]


def test_a_reservation_is_taken_away_for_good(airflow_tf, reserve, ledger):
    key, member = reserve("flights", 2)
    ledger.confirm(member, 4711)
    code, [row] = airflow_tf("reservations", "--release", member.reservation_id, "--yes", "--output", "json")
    assert (code, row) == (0, {"reservation": member.reservation_id, "replicas": 2, "result": "released"})
    assert airflow_tf("reservations", "--output", "json") == (0, [])
    with pytest.raises(LedgerError):  # the fence is spent: nothing starts under it
        ledger.start_attempt(key, 0, 1, member, "token")


@pytest.mark.parametrize("answer", ["n", ""])
def test_without_a_yes_it_stays(airflow_tf, reserve, monkeypatch, answer):
    asked = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or answer)
    _, member = reserve("flights")
    code, _ = airflow_tf("reservations", "--release", member.reservation_id)
    assert code == 1
    assert asked == [f"Take reservation {member.reservation_id} away and end its 1 replicas? [y/N] "]
    assert len(airflow_tf("reservations", "--output", "json")[1]) == 1


def test_what_is_not_held_cannot_be_released(airflow_tf):
    code, said = airflow_tf("reservations", "--release", 99, "--yes")
    assert code == 1
    assert "99" in said
