"""Which hosts the ledger knows, and taking one out of use."""

from __future__ import annotations

from dataclasses import replace

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted, Refused
from airflow_tf.devices.registry import read_all
from airflow_tf.supervisor.acquire import this_host


def ask(ledger, installation, dag_id):
    key = GangKey(ledger.ledger_id, dag_id, "run", "train")
    return key, ledger.reserve(key, DeviceRequest("cpu"), [0], this_host(), read_all(installation, "cpu"))


def test_a_host_is_registered_and_listed(airflow_tf):
    assert airflow_tf("hosts", "ls", "--output", "json") == (0, [])
    code, text = airflow_tf("hosts", "register")
    assert code == 0
    assert this_host().name in text
    _, (row,) = airflow_tf("hosts", "ls", "--output", "json")
    assert (row["host"], row["id"], row["devices"], row["kinds"]) == (this_host().name, this_host().host_id, 2, ["cpu"])
    assert (row["held"], row["replicas"], row["drained"]) == (0, 0, "")


def test_a_drained_host_offers_nothing_until_it_is_taken_back(airflow_tf, ledger, installation):
    (_, runs), (waits, _) = ask(ledger, installation, "flights"), ask(ledger, installation, "ships")
    ledger.confirm(runs.members[0], 4711)
    assert ledger.member(waits, 0) is not None
    code, text = airflow_tf("hosts", "drain", "--why", "new driver", "--yes")
    assert code == 0
    assert "new driver" in text
    _, (row,) = airflow_tf("hosts", "ls", "--output", "json")
    assert row["drained"].endswith(": new driver")
    assert (row["held"], row["replicas"]) == (1, 1)
    assert ledger.member(waits, 0) is None  # what has not begun does not begin
    key, refused = ask(ledger, installation, "trains")
    assert isinstance(refused, Refused)
    assert "is not offered: its host is drained" in str(refused)
    assert ledger.look(key).is_promising is False
    _, rows = airflow_tf("devices", "--output", "json")
    assert all("its host is drained" in row["reason"] for row in rows)
    assert sorted(row["state"] for row in rows) == ["not offered", "reserved"]
    assert airflow_tf("hosts", "register")[0] == 0
    assert isinstance(ask(ledger, installation, "trains")[1], Refused)  # nor does a new look take it back
    assert airflow_tf("hosts", "undrain", this_host().name)[0] == 0
    assert isinstance(ask(ledger, installation, "trains")[1], Granted)


def test_a_host_that_the_ledger_does_not_know_is_named(airflow_tf):
    code, text = airflow_tf("hosts", "drain", "elsewhere", "--yes")
    assert code == 1
    assert "no single host elsewhere" in text
    assert "never been registered" in text


def test_places_of_one_machine_are_counted_each_and_drained_together(airflow_tf, ledger, installation):
    here, readings = this_host(), read_all(installation, "cpu")
    before = replace(here, host_id=f"{here.machine}-before")  # as of a container that was started again
    key = GangKey(ledger.ledger_id, "flights", "run", "train")
    ledger.confirm(ledger.reserve(key, DeviceRequest("cpu"), [0], before, readings).members[0], 4711)
    assert airflow_tf("hosts", "register")[0] == 0
    rows = {row["id"]: row for row in airflow_tf("hosts", "ls", "--output", "json")[1]}
    assert {each: (row["held"], row["replicas"]) for each, row in rows.items()} == {
        before.host_id: (1, 1),
        here.host_id: (0, 0),
    }
    found = {(row["host_id"], row["device"]): row["state"] for row in airflow_tf("devices", "--output", "json")[1]}
    assert sorted(found.values()) == ["free", "free", "free", "reserved"]
    code, rows = airflow_tf("hosts", "drain", here.name, "--yes", "--output", "json")
    assert code == 0
    assert {row["id"]: bool(row["drained"]) for row in rows} == {before.host_id: True, here.host_id: True}
    ledger.register_host(replace(here, host_id="stranger-place"), readings)
    code, text = airflow_tf("hosts", "undrain", here.name)
    assert (code, "2 machines are called so" in text) == (1, True)
    _, rows = airflow_tf("hosts", "undrain", "--output", "json")
    assert {row["id"]: row["drained"] for row in rows} == {before.host_id: "", here.host_id: ""}
