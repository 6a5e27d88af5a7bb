"""Contract of reservations: all or nothing, one holder, expiry of what nobody confirmed, reasons in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_tf.core.devices import Health, Member
from airflow_tf.core.errors import DevicesNeverFitError, LedgerError
from airflow_tf.core.identity import GangKey, View
from airflow_tf.core.ledger import Granted, Refused
from airflow_tf.core.states import AttemptState, MemberState
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.clock import boot_seconds
from airflow_tf.ledger.read import LedgerReader
from tests.ledger.conftest import HOST, devices, request


def uuids(granted):
    assert isinstance(granted, Granted)
    return [[device.uuid for device in member.devices] for member in granted.members]


def test_gives_each_replica_its_own_devices(reserve):
    granted = reserve("flights", [0, 1], devices(4), per_replica=2)
    assert uuids(granted) == [["cpu-0", "cpu-1"], ["cpu-2", "cpu-3"]]
    assert [member.replica for member in granted.members] == [0, 1]
    assert {member.fence for member in granted.members} == {granted.reservation_id}


def test_all_or_nothing_and_the_refusal_names_each_holder(reserve, time):
    reserve("flights", [0, 1], devices(4))
    time.seconds += 40
    refused = reserve("other", [0, 1, 2], devices(4))
    assert isinstance(refused, Refused)
    assert str(refused) == (
        "2 of 3 devices free; cpu-0 held by flights / run x / train[0] since 12:00 UTC; "
        "cpu-1 held by flights / run x / train[1] since 12:00 UTC"
    )
    assert "cpu-2 kept for other / run x / train" in str(reserve("third", [0, 1], devices(4)))


def test_a_holder_of_another_day_is_named_with_the_date(reserve, ledger, gang, time):
    ledger.confirm(reserve("flights", [0], devices(1)).members[0], 1)
    time.seconds += 86400
    assert "since 2026-10-03 12:00 UTC" in str(reserve("other", [0], devices(1)))


def test_replicas_that_have_devices_keep_them_and_the_missing_get_theirs(reserve):
    first = reserve("flights", [1], devices(3))
    both = reserve("flights", [0, 1, 1], devices(3))
    assert uuids(both) == [["cpu-1"], ["cpu-0"]]
    assert both.members[1] == first.members[0]
    assert both.members[0].fence > both.members[1].fence
    assert reserve("flights", [0, 1], devices(3)).members == both.members


def test_replicas_without_devices_are_members_too(reserve):
    granted = reserve("ps", [0, 1], [], per_replica=0)
    assert uuids(granted) == [[], []]


@pytest.mark.parametrize(
    ("demands", "words"),
    [
        ({"replicas": range(8)}, ["wants 8 devices of kind cpu", "host gpu-host has 4"]),
        ({"replicas": [0, 1], "per_replica": 3}, ["wants 6 devices of kind cpu", "has 4"]),
        ({"replicas": [0], "kind": "gpu"}, ["wants 1 devices of kind gpu", "has 0"]),
        ({"replicas": [0], "min_free_bytes": 9 * 2**30}, ["with at least 9.0 GiB", "has 0"]),
        ({"replicas": [0], "names": ("A100*", "H100*")}, ["named A100* or H100*", "has 0"]),
    ],
)
def test_what_can_never_fit_is_refused_for_good_with_the_numbers(reserve, demands, words):
    replicas, demands = demands["replicas"], {name: value for name, value in demands.items() if name != "replicas"}
    with pytest.raises(DevicesNeverFitError) as caught:
        reserve("flights", list(replicas), devices(4, memory_bytes=8 * 2**30), **demands)
    for word in words:
        assert word in str(caught.value)


def test_what_never_fits_holds_nothing(reserve, ledger):
    with pytest.raises(DevicesNeverFitError):
        reserve("flights", [0, 1, 2], devices(2))
    assert LedgerReader(ledger).reservations() == []
    assert uuids(reserve("other", [0, 1], devices(2))) == [["cpu-0"], ["cpu-1"]]


def test_devices_that_are_not_free_are_not_given_and_say_why(reserve):
    busy, sick, dark, full, free = devices(5, memory_bytes=8 * 2**30)
    readings = [
        replace(busy, health=Health.BUSY, reason="held by pid 7"),
        replace(sick, health=Health.UNHEALTHY, reason="ECC error"),
        replace(dark, health=Health.UNKNOWN),
        replace(full, free_bytes=2**30),
        replace(free, free_bytes=7 * 2**30),
    ]
    assert uuids(reserve("flights", [0], readings, min_free_bytes=2**32)) == [["cpu-4"]]
    refused = reserve("other", [0, 1], readings, min_free_bytes=2**32)
    assert refused.free == 0
    assert refused.reasons == (
        "cpu-0 busy: held by pid 7",
        "cpu-1 unhealthy: ECC error",
        "cpu-2 unknown: no reason given",
        "cpu-3: 1.0 GiB of 4.0 GiB memory free",
        "cpu-4 held by flights / run x / train[0] since 12:00 UTC",
    )


def test_memory_that_is_not_reported_is_no_hindrance(reserve):
    assert uuids(reserve("flights", [0], devices(1), min_free_bytes=2**40)) == [["cpu-0"]]


def test_a_device_that_is_gone_is_not_given(reserve, ledger):
    reserve("flights", [0], devices(3))
    ledger.register_host(HOST, devices(2))
    with pytest.raises(DevicesNeverFitError, match="has 2"):
        reserve("other", [0, 1, 2], devices(2))
    assert [row.uuid for row in LedgerReader(ledger).devices()] == ["cpu-0", "cpu-1"]


def test_only_an_unconfirmed_member_expires(reserve, ledger, gang, time):
    kept, lost = reserve("flights", [0, 1], devices(2)).members
    ledger.confirm(kept, 4711)
    time.seconds += 61
    assert ledger.member(gang("flights"), 0).state == MemberState.CONFIRMED
    assert ledger.member(gang("flights"), 1) is None
    assert uuids(reserve("other", [0], devices(2))) == [["cpu-1"]]
    with pytest.raises(LedgerError, match="it is expired"):
        ledger.confirm(lost, 4711)


def test_a_reservation_of_an_earlier_boot_has_expired(reserve, ledger, ledger_settings, time):
    reserve("flights", [0], devices(1))
    time.epoch, time.seconds = "boot-2", 5.0
    later = open_ledger(ledger_settings, clock=time.clock())
    assert LedgerReader(later).reservations() == []
    later.close()


def test_renewing_and_asking_again_postpone_expiry(reserve, ledger, gang, time):
    reserve("flights", [0], devices(1))
    for _ in range(3):
        time.seconds += 50
        assert ledger.renew(gang("flights"), 4711).cancelled_by is None
    for _ in range(3):
        time.seconds += 50
        reserve("flights", [0], devices(1))
    assert ledger.member(gang("flights"), 0) is not None
    time.seconds += 61
    ledger.renew(gang("flights"), 4711)
    assert ledger.member(gang("flights"), 0) is None


def test_confirming_twice_is_fine_for_the_same_supervisor_only(reserve, ledger):
    (member,) = reserve("flights", [0], devices(1)).members
    ledger.confirm(member, 1)
    ledger.confirm(member, 1)
    with pytest.raises(LedgerError, match="it is confirmed"):
        ledger.confirm(member, 2)


def start(reserve, ledger, key):
    """Return the member of a replica that supervisor 4711 has started."""
    (member,) = reserve("flights", [0], devices(1)).members
    ledger.confirm(member, 4711)
    ledger.open_gang(key, 1, "/run")
    ledger.enter(key, 0, View("ti", 1, 1))
    ledger.start_attempt(key, 0, 1, member, "token")
    return member


def test_what_a_dead_supervisor_used_is_not_confirmed_by_another_that_has_its_pid(reserve, ledger, gang):
    key = gang("flights")
    member = start(reserve, ledger, key)
    with pytest.raises(LedgerError, match="it is confirmed"):
        ledger.confirm(member, 4711)
    assert ledger.replicas(key)[0].outcome is None


def test_what_is_confirmed_again_is_no_older_than_who_confirmed_it(reserve, ledger, time):
    (member,) = reserve("flights", [0], devices(1)).members
    ledger.confirm(member, 4711)
    time.seconds += 7  # in which it died and another got its pid
    ledger.confirm(member, 4711)
    (found,) = ledger.confirmed_on(HOST)
    assert found.confirmed_seconds == 1007.0


def test_confirming_what_was_released_or_never_was_is_refused(reserve, ledger):
    (member,) = reserve("flights", [0], devices(1)).members
    ledger.release(member)
    with pytest.raises(LedgerError, match="it is released"):
        ledger.confirm(member, 1)
    with pytest.raises(LedgerError, match="unknown to this ledger"):
        ledger.confirm(Member(99, 99, 0), 1)


def test_release_is_idempotent_and_never_touches_a_later_holder(reserve, ledger, gang):
    (first,) = reserve("flights", [0], devices(1)).members
    ledger.release(first)
    (second,) = reserve("flights", [0], devices(1)).members
    assert second.fence > first.fence
    ledger.release(first)
    assert ledger.member(gang("flights"), 0) == second


def test_the_fence_only_grows_even_when_all_is_free_again(reserve, ledger):
    fences = []
    for _ in range(5):
        (member,) = reserve("flights", [0], devices(1)).members
        fences.append(member.fence)
        ledger.release(member)
    assert fences == sorted(set(fences))


def test_a_new_boot_releases_what_the_machine_held_and_loses_its_attempts(reserve, ledger, gang):
    key = gang("flights")
    start(reserve, ledger, key)
    ledger.register_host(replace(HOST, host_id="machine-other", boot_id="boot-2"), devices(1))
    assert ledger.member(key, 0) is None
    assert ledger.replicas(key)[0].outcome.state is AttemptState.LOST
    assert ledger.confirmed_on(HOST) == []


def test_another_machine_releases_nothing(reserve, ledger, gang):
    (member,) = reserve("flights", [0], devices(1)).members
    ledger.confirm(member, 4711)
    ledger.register_host(replace(HOST, host_id="stranger-place", boot_id="boot-2"), devices(1))
    assert ledger.member(gang("flights"), 0) is not None


def test_the_time_of_confirmation_is_of_the_host_s_own_clock(ledger_settings):
    ledger = open_ledger(ledger_settings)
    key = GangKey(ledger.ledger_id, "flights", "run x", "train")
    before = boot_seconds()
    ledger.confirm(ledger.reserve(key, request(), [0], HOST, devices(1)).members[0], 4711)
    (found,) = ledger.confirmed_on(HOST)
    assert before <= found.confirmed_seconds <= boot_seconds()
    ledger.close()


def test_confirmed_members_of_a_host_come_with_pid_time_and_last_token(reserve, ledger, gang, time):
    key = gang("flights")
    first, _ = reserve("flights", [0, 1], devices(2)).members
    time.seconds += 7
    ledger.confirm(first, 4711)
    ledger.open_gang(key, 2, "/run")
    ledger.enter(key, 0, View("ti", 1, 1))
    ledger.start_attempt(key, 0, 1, first, "token-1")
    ledger.start_attempt(key, 0, 1, first, "token-2")
    (found,) = ledger.confirmed_on(HOST)
    assert (found.supervisor_pid, found.confirmed_seconds, found.token) == (4711, 1007.0, "token-2")
    assert found.gang_label == "flights / run x / train[0]"
    assert found.member.devices == first.devices
    assert ledger.confirmed_on(replace(HOST, host_id="other")) == []


def test_revoking_frees_the_devices_and_loses_the_attempt(reserve, ledger, gang):
    key = gang("flights")
    member = start(reserve, ledger, key)
    ledger.revoke(member, "its supervisor died")
    outcome = ledger.replicas(key)[0].outcome
    assert (outcome.state, outcome.message) == (AttemptState.LOST, "its supervisor died")
    assert uuids(reserve("other", [0], devices(1))) == [["cpu-0"]]


def test_cancel_takes_back_what_is_only_reserved_and_tells_the_supervisor(reserve, ledger, gang):
    key = gang("flights")
    confirmed, _ = reserve("flights", [0, 1], devices(2)).members
    ledger.confirm(confirmed, 4711)
    ledger.cancel(key.key, "alice")
    assert ledger.renew(key, 4711).cancelled_by is not None
    assert ledger.member(key, 0) is not None
    assert ledger.member(key, 1) is None
    with pytest.raises(LedgerError, match="no gang"):
        ledger.cancel("unknown", "alice")


def test_cancel_ends_with_a_cleared_task_but_not_with_a_retry_or_a_sibling(ledger, gang):
    key = gang("flights")
    ledger.open_gang(key, 2, "/run")
    ledger.enter(key, 0, View("a", 1, 1))
    ledger.cancel(key.key, "alice")
    ledger.enter(key, 0, View("b", 2, 1))
    ledger.enter(key, 1, View("c", 1, 1))
    assert ledger.renew(key, 1).cancelled_by is not None
    ledger.enter(key, 0, View("d", 3, 3))
    assert ledger.renew(key, 1).cancelled_by is None


def test_a_heartbeat_of_an_unknown_gang_is_no_cancel(ledger, gang):
    assert ledger.renew(gang("never seen"), 1).cancelled_by is None


def test_a_host_without_devices_is_seen_again(ledger, time):
    for _ in range(2):
        ledger.register_host(HOST, [])
        time.seconds += 10
    assert [row.devices for row in LedgerReader(ledger).hosts()] == [0]


def test_a_gang_is_confirmed_as_a_whole_or_not_at_all(ledger, gang, reserve):
    first, second = reserve("flights", [0, 1], devices(2)).members
    ledger.release(second)
    with pytest.raises(LedgerError, match="replica 1 cannot be confirmed"):
        ledger.confirm(first, 4711, second)
    assert ledger.member(gang("flights"), 0).state == MemberState.RESERVED
    (second,) = reserve("flights", [1], devices(2)).members
    ledger.confirm(first, 4711, second)
    assert [ledger.member(gang("flights"), replica).state for replica in (0, 1)] == [MemberState.CONFIRMED] * 2
    ledger.release(first, second)
    assert LedgerReader(ledger).reservations() == []
