"""What is shown of a ledger is plain JSON and true."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from airflow_tf.core.identity import View
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.ledger.read import LedgerReader
from tests.ledger.conftest import devices


@pytest.fixture
def reader(ledger):
    return LedgerReader(ledger)


def plain(rows):
    return json.loads(json.dumps([asdict(row) for row in rows]))


def test_devices_with_their_holders(reader, reserve, time):
    reserve("flights", [0], devices(2))
    held, free = plain(reader.devices())
    assert (held["host"], held["uuid"], held["health"]) == ("gpu-host", "cpu-0", "free")
    assert [holder["gang_label"] for holder in held["holders"]] == ["flights / run x / train"]
    assert free["holders"] == []
    time.seconds += 61
    assert [row["holders"] for row in plain(reader.devices())] == [[], []]


def test_reservations_with_the_time_left(reader, reserve, ledger, time):
    first, _ = reserve("flights", [0, 1], devices(2)).members
    ledger.confirm(first, 4711)
    time.seconds += 20
    confirmed, reserved = plain(reader.reservations())
    assert (confirmed["state"], confirmed["supervisor_pid"], confirmed["expires_in_seconds"]) == (
        "confirmed",
        4711,
        None,
    )
    assert (reserved["state"], reserved["devices"], reserved["expires_in_seconds"]) == ("reserved", ["cpu-1"], 40.0)
    time.seconds += 41
    assert [row["replica"] for row in plain(reader.reservations())] == [0]


def test_runs_with_their_replicas(reader, reserve, ledger, gang, time):
    key = gang("flights")
    member, _ = reserve("flights", [0, 1], devices(3)).members
    time.seconds += 60 * 5
    reserve("waiting", [0], devices(3))
    ledger.open_gang(key, 2, "/run")
    ledger.enter(key, 0, View("a", 1, 1))
    (member, _) = reserve("flights", [0, 1], devices(3)).members
    ledger.start_attempt(key, 0, 1, member, "t1")
    ledger.update_attempt(key, 0, 1, 1, pid=99, step=7)
    ledger.cancel(key.key, "alice")
    waiting, flights = plain(reader.runs())
    assert waiting["label"] == "waiting / run x / train"
    assert (flights["dag_id"], flights["count"], flights["folder"]) == ("flights", 2, "/run")
    assert flights["cancelled_by"] == "alice"
    (replica,) = flights["replicas"]
    assert (replica["state"], replica["pid"], replica["step"], replica["attempts"]) == ("lost", 99, 7, 1)
    assert [run["dag_id"] for run in plain(reader.runs("flights"))] == ["flights"]
    assert reader.runs("nothing") == []


def test_a_replica_tells_its_last_attempt(reader, reserve, ledger, gang):
    key = gang("flights")
    member, _ = reserve("flights", [0, 1], devices(2)).members
    ledger.open_gang(key, 2, "/run")
    ledger.enter(key, 0, View("a", 1, 1))
    assert [replica.state for replica in reader.runs()[0].replicas] == ["waiting", "waiting"]
    ledger.start_attempt(key, 0, 1, member, "t1")
    ledger.end_attempt(key, 0, 1, 1, Outcome(AttemptState.FAILED, ExitCause.USER_ERROR, "raised", 1))
    first, second = reader.runs()[0].replicas
    assert (first.state, first.cause, first.message, first.devices) == ("failed", "user_error", "raised", ("cpu-0",))
    assert (second.state, second.generation, second.devices) == ("waiting", 0, ("cpu-1",))


def test_runs_are_filtered_by_the_database(reader, reserve, ledger, gang, time):
    for name in ("flights", "trains", "ships"):
        time.seconds += 1
        member, _ = reserve(name, [0, 1], devices(6)).members
        ledger.open_gang(gang(name), 2, "/run")
        ledger.enter(gang(name), 0, View("a", 1, 1))
        ledger.start_attempt(gang(name), 0, 1, member, f"{name} 1")
    ledger.end_attempt(gang("flights"), 0, 1, 1, Outcome(AttemptState.FAILED, ExitCause.USER_ERROR, "raised", 1))
    ledger.start_attempt(gang("flights"), 0, 1, ledger.member(gang("flights"), 0), "flights 2")
    ledger.end_attempt(gang("trains"), 0, 1, 1, Outcome(AttemptState.FAILED, ExitCause.USER_ERROR, "raised", 1))
    ledger.enter(gang("ships"), 0, View("a", 2, 2))

    def found(**filters):
        return [run.dag_id for run in reader.runs(**filters)]

    assert found() == ["ships", "trains", "flights"]
    assert found(limit=2) == ["ships", "trains"]
    assert found(state="starting") == ["flights"]
    assert found(state="failed") == ["trains"]
    assert found(state="waiting") == ["ships", "trains", "flights"]  # their second replicas
    assert found(state="failed", dag_id="flights") == []
    assert found(name=gang("trains").key[:8]) == ["trains"]
    assert found(name="run x", limit=1) == ["ships"]
    assert found(name="run_x") == []
    assert found(run_id="run x", limit=1) == ["ships"]
    assert found(run_id=gang("trains").key[:8]) == []
    [failed] = reader.runs(state="failed")
    assert failed.replicas[0].started == "2026-10-03T12:00:02+00:00"
    assert failed.replicas[0].ended is not None
