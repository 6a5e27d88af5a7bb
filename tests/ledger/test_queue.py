"""Contract of the queue: priority, then arrival; nobody is overtaken with a device that it needs; the dead block nobody."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from airflow_tf.core.devices import Health
from airflow_tf.core.ledger import Granted, Refused, Turn
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.read import LedgerReader
from tests.ledger.conftest import HOST, devices, request

FOUR = devices(4)


@pytest.fixture
def ask(ledger, gang):
    """Let a gang look: ask(name, replicas, turn, **demands)."""

    def call(name, replicas, turn=Turn(), readings=FOUR, **demands):  # noqa: B008 (frozen)
        return ledger.reserve(gang(name), request(**demands), range(replicas), HOST, readings, turn)

    return call


def release(ledger, granted):
    for member in granted.members:
        ledger.release(member)


def test_a_later_small_gang_never_takes_what_an_earlier_big_one_waits_for(ask, ledger):
    first = ask("first", 2)
    assert isinstance(ask("big", 4), Refused)
    refused = ask("small", 1)
    assert refused.free == 0
    assert refused.reasons[-3:] == (
        "cpu-2 kept for big / run x / train",
        "cpu-3 kept for big / run x / train",
        "before it in the queue: big / run x / train (4 devices, waiting 0 s)",
    )
    release(ledger, first)
    assert isinstance(ask("small", 1), Refused)
    assert isinstance(ask("big", 4), Granted)


def test_priority_comes_before_arrival_and_arrival_is_kept_over_looks(ask, ledger, time):
    holder = ask("holder", 4)
    for name, priority in [("early", 0), ("late", 0), ("urgent", 5)]:
        time.seconds += 1
        ask(name, 4, Turn(priority))
    time.seconds += 1
    ask("early", 4)
    rows = LedgerReader(ledger).queue()
    assert [(row.position, row.gang_label.split()[0], row.waited_seconds) for row in rows] == [
        (1, "urgent", 1.0),
        (2, "early", 3.0),
        (3, "late", 2.0),
    ]
    assert rows[1].reason.startswith("0 of 4 devices free; cpu-0 held by holder")
    release(ledger, holder)
    assert isinstance(ask("early", 4), Refused)
    assert isinstance(ask("late", 4), Refused)
    urgent = ask("urgent", 4, Turn(5))
    release(ledger, urgent)
    assert isinstance(ask("late", 4), Refused)
    assert isinstance(ask("early", 4), Granted)
    assert [row.gang_label.split()[0] for row in LedgerReader(ledger).queue()] == ["late"]


def test_a_gang_passes_with_devices_that_the_waiting_one_cannot_use(ask):
    mixed = [*devices(2, "gpu"), *devices(2, "cpu")]
    ask("holder", 1, readings=mixed, kind="gpu")
    ask("waiting", 2, readings=mixed, kind="gpu")
    assert isinstance(ask("small", 1, readings=mixed, kind="cpu"), Granted)
    assert isinstance(ask("other", 1, readings=mixed, kind="gpu"), Refused)


def test_declared_limits_let_a_short_gang_pass(ask, ledger, time):
    holder = ask("holder", 3, Turn(time_limit_seconds=100.0))
    for member in holder.members:
        ledger.confirm(member, 1)
    ask("big", 4)
    time.seconds += 10
    assert isinstance(ask("long", 1, Turn(time_limit_seconds=91.0)), Refused)
    assert isinstance(ask("short", 1, Turn(time_limit_seconds=90.0)), Granted)


def test_a_waiter_that_misses_three_looks_is_forgotten(ask, ledger, gang, time):
    ask("holder", 2)
    ask("big", 4, Turn(look_seconds=5.0))
    time.seconds += 15
    assert isinstance(ask("small", 1), Refused)
    time.seconds += 0.1
    assert isinstance(ask("small", 1), Granted)
    assert ledger.look(gang("big")) is None
    ask("big", 4)
    assert ledger.look(gang("big")).waited_seconds == 0


def test_a_waiter_of_an_earlier_boot_is_forgotten(ask, ledger, ledger_settings, gang, time):
    ask("holder", 2)
    ask("big", 4)
    time.epoch = "boot-2"
    later = open_ledger(ledger_settings, clock=time.clock())
    assert later.look(gang("big")) is None
    later.close()


def test_a_look_keeps_the_place_and_tells_when_a_real_look_is_worth_while(ask, ledger, gang, time):
    holder = ask("holder", 4)
    ask("first", 2)
    ask("second", 2)
    ask("third", 2)
    for _ in range(3):
        time.seconds += 14
        assert not ledger.look(gang("first")).is_promising
        ledger.look(gang("second"))
        ledger.look(gang("third"))
    assert ledger.look(gang("first")).waited_seconds == 42
    release(ledger, holder)
    assert ledger.look(gang("first")).is_promising
    assert ledger.look(gang("second")).is_promising
    assert not ledger.look(gang("third")).is_promising
    assert ledger.look(gang("holder")) is None


def test_a_device_whose_lock_was_its_holder_s_seems_free_when_that_one_has_left(ask, ledger, gang):
    holder = ask("holder", 1, readings=devices(1))
    busy = [replace(devices(1)[0], health=Health.BUSY, reason="locked by pid 7")]
    ask("waiting", 1, readings=busy)
    release(ledger, holder)
    assert ledger.look(gang("waiting")).is_promising


def test_who_withdraws_or_is_cancelled_is_not_waited_for(ask, ledger, gang):
    ask("holder", 2)
    ask("big", 4)
    ledger.withdraw(gang("big"))
    ledger.withdraw(gang("big"))
    assert isinstance(ask("small", 1), Granted)
    ask("huge", 4)
    ledger.cancel(gang("huge").key, "alice")
    assert isinstance(ask("other", 1), Granted)


def test_replicas_of_one_gang_wait_each_in_its_turn(ledger, gang, ask):
    def one(replica):
        return ledger.reserve(gang("apart"), request(), [replica], HOST, FOUR)

    holder = ask("holder", 4)
    assert isinstance(one(0), Refused)
    assert isinstance(one(1), Refused)
    ledger.release(holder.members[0])
    assert isinstance(one(1), Refused)
    assert isinstance(one(0), Granted)
    ledger.release(holder.members[1])
    assert isinstance(one(1), Granted)
    assert LedgerReader(ledger).queue() == []


def test_a_barred_device_is_offered_to_nobody_for_a_minute_and_its_gang_keeps_its_place(ask, ledger, gang, time):
    holder = ask("holder", 4)
    for each in holder.members:
        ledger.confirm(each, 1)
    time.seconds += 1
    ask("first", 1)
    time.seconds += 1
    ask("second", 1)
    ledger.release(holder.members[0])
    (member,) = ask("first", 1).members
    ledger.confirm(member, 1)
    ledger.bar(member, ["cpu-0"], "cpu-0 is locked by pid 7")
    ledger.release(member)
    refused = ask("first", 1)
    assert refused.reasons[0] == "cpu-0 is not offered for 60 s: cpu-0 is locked by pid 7"
    assert [row.barred for row in LedgerReader(ledger).devices()] == ["cpu-0 is locked by pid 7", "", "", ""]
    assert [row.gang_label.split()[0] for row in LedgerReader(ledger).queue()] == ["first", "second"]
    ledger.release(holder.members[1])
    assert isinstance(ask("second", 1), Refused)
    assert isinstance(ask("first", 1), Granted)
    time.seconds += 58
    assert isinstance(ask("second", 1), Refused)
    time.seconds += 2
    assert [device.uuid for device in ask("second", 1).members[0].devices] == ["cpu-0"]


def test_a_gang_that_was_granted_at_once_keeps_its_place_too(ask, ledger, time):
    (member,) = ask("first", 1, readings=devices(1)).members
    time.seconds += 5
    ask("second", 1, readings=devices(1))
    ledger.bar(member, ["cpu-0"], "locked")
    ledger.release(member)
    ask("first", 1, readings=devices(1))
    assert [row.gang_label.split()[0] for row in LedgerReader(ledger).queue()] == ["first", "second"]


def test_two_gangs_of_three_on_four_devices_finish_one_after_the_other(ledger, gang, database_url):
    """Whatever order both look in: never does each hold a part, and both get all in the end."""
    for seed in range(500 if database_url.startswith("sqlite") else 50):
        turns = random.Random(seed)
        left = {f"a{seed}": None, f"b{seed}": None}
        holding = None
        for _ in range(50):
            name = turns.choice(list(left))
            if left[name] is None:
                answer = ledger.reserve(gang(name), request(), [0, 1, 2], HOST, FOUR)
                if isinstance(answer, Granted):
                    assert holding is None
                    holding, left[name] = name, answer
            else:
                release(ledger, left.pop(name))
                holding = None
            if not left:
                break
        assert not left


def test_gangs_that_each_have_a_part_of_what_they_want_do_not_wait_for_each_other(ask, ledger, gang):
    """Parts are left where a supervisor died before it had confirmed all of a gang."""
    for name in ("one", "two"):
        granted = ask(name, 2, per_replica=1)
        ledger.confirm(granted.members[0], 1)
    for name in ("one", "two"):
        ledger.revoke(ledger.member(gang(name), 0), "its supervisor (pid 1) died")
    other = ask("other", 2)
    assert isinstance(ask("one", 2), Refused)
    assert ledger.member(gang("one"), 1) is None
    assert isinstance(ask("two", 2), Refused)
    assert ledger.member(gang("two"), 1) is None
    release(ledger, other)
    assert isinstance(ask("one", 2), Granted)
    assert isinstance(ask("two", 2), Granted)


def test_a_replica_that_runs_keeps_its_device_while_another_of_its_gang_waits(ask, ledger, gang):
    granted = ask("one", 2)
    ledger.confirm(granted.members[0], 1)
    ledger.release(granted.members[1])
    ask("other", 3)
    assert isinstance(ask("one", 2), Refused)
    assert ledger.member(gang("one"), 0).state == "confirmed"
