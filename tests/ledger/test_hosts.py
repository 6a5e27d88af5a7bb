"""Contract of hosts: a machine has one place for each pid namespace and root; what is drained is the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_tf.core.errors import LedgerError
from airflow_tf.core.ledger import Granted, Refused
from airflow_tf.core.states import MemberState
from airflow_tf.ledger import statements
from airflow_tf.ledger.read import LedgerReader
from tests.ledger.conftest import HOST, devices, request

ELSEWHERE = replace(HOST, host_id="machine-container")
REBOOTED = replace(HOST, host_id="machine-again", boot_id="boot-2")
STRANGER = replace(HOST, host_id="stranger-place")


@pytest.fixture
def ask(ledger, gang):
    """Let a new gang ask for a device of a place."""
    names = iter(range(100))
    return lambda host: ledger.reserve(gang(f"gang {next(names)}"), request(), [0], host, devices(4))


def test_a_machine_is_drained_in_all_its_places_and_those_to_come(ledger, ask):
    for host in (HOST, ELSEWHERE, STRANGER):
        assert isinstance(ask(host), Granted)
    ledger.drain(HOST.host_id, "alice", "new driver")
    assert [isinstance(ask(host), Refused) for host in (HOST, ELSEWHERE, STRANGER)] == [True, True, False]
    assert "drained, by alice at 2026-10-03T12:00:00+00:00: new driver" in str(ask(REBOOTED))
    ledger.undrain(REBOOTED.host_id)
    assert isinstance(ask(HOST), Granted)
    assert [row.drained for row in LedgerReader(ledger).hosts()] == [""] * 4


def test_what_is_only_reserved_does_not_begin_on_a_drained_machine(ledger, reserve, gang):
    runs, waits = (reserve(name, [0], devices(4)).members[0] for name in ("runs", "waits"))
    ledger.confirm(runs, 4711)
    there = ledger.reserve(gang("elsewhere"), request(), [0], ELSEWHERE, devices(4)).members[0]
    ledger.drain(HOST.host_id, "alice", "new driver")
    assert ledger.member(gang("runs"), 0).state == MemberState.CONFIRMED
    for member in (waits, there):
        with pytest.raises(LedgerError, match="it is revoked"):
            ledger.confirm(member, 4712)
    assert isinstance(reserve("waits", [0], devices(4)), Refused)
    assert isinstance(reserve("runs", [0], devices(4)), Granted)  # its task looks on as before
    assert ledger.renew(gang("runs"), 4711).revoked == ()


def test_places_of_an_earlier_boot_are_forgotten_until_they_come_again(ledger, ask):
    queued = replace(HOST, host_id="machine-queued")
    ledger.confirm(ask(HOST).members[0], 4711)
    for place in (ELSEWHERE, STRANGER):
        ledger.register_host(place, devices(4))
    assert [isinstance(ask(queued), Refused) for _ in range(5)] == [False] * 4 + [True]
    ledger.register_host(REBOOTED, devices(2))
    reader = LedgerReader(ledger)
    found = {row.host_id: row.devices for row in reader.hosts()}
    assert found == {HOST.host_id: 0, queued.host_id: 4, REBOOTED.host_id: 2, STRANGER.host_id: 4}
    assert {row.host_id for row in reader.devices()} == {queued.host_id, REBOOTED.host_id, STRANGER.host_id}
    for place in (HOST, ELSEWHERE):
        assert isinstance(ask(replace(place, boot_id=REBOOTED.boot_id)), Granted)


def test_a_drain_outlives_the_place_that_it_was_said_of(ledger):
    ledger.register_host(HOST, devices(4))
    ledger.drain(HOST.host_id, "alice", "new driver")
    ledger.register_host(REBOOTED, devices(4))
    assert [(row.host_id, bool(row.drained)) for row in LedgerReader(ledger).hosts()] == [(REBOOTED.host_id, True)]


def test_what_is_barred_on_one_host_is_no_rarity_on_another(ledger, ask):
    def has_bars():
        steps = [statements.RARITIES.given(of_gang="", of_host=host.host_id) for host in (HOST, STRANGER)]
        return [bool(rare.has_bars) for (rare,) in ledger._transactions.change(lambda work: work.run_all(*steps))]

    ledger.register_host(STRANGER, devices(4))
    ledger.bar(ask(HOST).members[0], ["cpu-0"], "locked")
    assert has_bars() == [True, False]
    ledger.drain(STRANGER.host_id, "alice", "new driver")
    assert has_bars() == [True, True]
