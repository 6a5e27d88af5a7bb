"""Contract of holders: shares, silent supervisors, release by hand, hosts that could serve, clocks that jump."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from airflow_tf.core.devices import Health
from airflow_tf.core.errors import DevicesNeverFitError, LedgerError
from airflow_tf.core.identity import GangKey, View
from airflow_tf.core.ledger import Granted, Outcome, Refused, Turn
from airflow_tf.core.states import AttemptState
from airflow_tf.ledger import Clock, open_ledger
from airflow_tf.ledger.read import LedgerReader
from tests.ledger.conftest import HOST, devices, request


@pytest.fixture
def confirmed(reserve, ledger):
    """A member whose supervisor is pid 4711."""
    (member,) = reserve("flights", [0], devices(1)).members
    ledger.confirm(member, 4711)
    return member


@pytest.fixture
def running(ledger, gang, confirmed):
    key = gang("flights")
    ledger.open_gang(key, 1, "/run")
    ledger.enter(key, 0, View("ti", 1, 1))
    ledger.start_attempt(key, 0, 1, confirmed, "token")
    return key


# --- shares --------------------------------------------------------------------------------------------------------


def test_sharers_fill_a_device_and_no_more(reserve, ledger):
    first = reserve("a", [0], devices(1), share_percent=60)
    assert first.members[0].share_percent == 60
    refused = reserve("b", [0], devices(1), share_percent=50)
    assert refused.reasons[0] == "cpu-0: 60 % of it held by a / run x / train[0] since 12:00 UTC"
    ledger.withdraw(key_of(ledger, "b"))
    second = reserve("c", [0], devices(1), share_percent=40)
    assert isinstance(second, Granted)
    (row,) = LedgerReader(ledger).devices()
    assert [(holder.gang_label.split()[0], holder.share_percent) for holder in row.holders] == [("a", 60), ("c", 40)]
    assert [row.share_percent for row in LedgerReader(ledger).reservations()] == [40, 60]
    ledger.release(first.members[0])
    assert isinstance(reserve("whole", [0], devices(1)), Refused)
    ledger.release(second.members[0])
    assert isinstance(reserve("whole", [0], devices(1)), Granted)


def key_of(ledger, name):
    return GangKey(ledger.ledger_id, name, "run x", "train")


def test_replicas_of_one_gang_share(reserve):
    granted = reserve("a", [0, 1, 2, 3], devices(2), share_percent=50)
    assert sorted(member.devices[0].uuid for member in granted.members) == ["cpu-0", "cpu-0", "cpu-1", "cpu-1"]


def test_two_whole_holders_of_a_device_cannot_be_written_down(ledger, confirmed, reserve):
    reserve("other", [0], devices(2))

    def write_down(session, _):
        session.execute(text("UPDATE holdings SET uuid = 'cpu-0'"))

    with pytest.raises(LedgerError):
        ledger._transactions.write(write_down)


# --- which host could serve ----------------------------------------------------------------------------------------


def test_another_registered_host_that_could_serve_is_named(ledger, reserve):
    ledger.register_host(replace(HOST, host_id="big-place", name="big-host"), devices(8))
    with pytest.raises(DevicesNeverFitError, match=r"host gpu-host has 2\. Run it on big-host"):
        reserve("flights", [0, 1, 2], devices(2))
    with pytest.raises(DevicesNeverFitError, match=r"No other host has more than 8 \(big-host\)"):
        reserve("flights", range(9), devices(2))


def test_a_gpu_that_its_host_has_lost_is_waited_for_until_the_next_boot(reserve, ledger):
    ledger.register_host(HOST, devices(2, "gpu"))
    refused = reserve("flights", [0, 1], devices(1, "gpu"), kind="gpu")
    assert refused.reasons == ("gpu-1 unhealthy: lost: its host no longer lists it",)
    rebooted = replace(HOST, boot_id="boot-2")
    ledger.register_host(rebooted, devices(1, "gpu"))
    with pytest.raises(DevicesNeverFitError, match="has 1"):
        ledger.reserve(key_of(ledger, "other"), request(kind="gpu"), [0, 1], rebooted, devices(1, "gpu"))


# --- silent supervisors --------------------------------------------------------------------------------------------


def test_a_silent_supervisor_is_suspect_and_keeps_its_devices(reserve, ledger, confirmed, running, time):
    time.seconds += 60
    (row,) = LedgerReader(ledger).reservations()
    assert (row.state, row.is_suspect) == ("confirmed", False)
    time.seconds += 90
    assert LedgerReader(ledger).reservations()[0].is_suspect
    assert LedgerReader(ledger).devices()[0].holders[0].state == "suspect"
    refused = reserve("other", [0], devices(1))
    assert refused.reasons == ("cpu-0 held by flights / run x / train[0] since 12:00 UTC, suspect since 12:01 UTC",)
    ledger.renew(running, 9)  # not its supervisor
    assert LedgerReader(ledger).reservations()[0].is_suspect
    ledger.renew(running, 4711)
    assert not LedgerReader(ledger).reservations()[0].is_suspect


# --- by hand -------------------------------------------------------------------------------------------------------


def test_what_is_released_by_hand_is_free_and_its_supervisor_learns_of_it(reserve, ledger, confirmed, running):
    assert ledger.release_by_hand(confirmed.reservation_id, "alice") == 1
    outcome = ledger.replicas(running)[0].outcome
    assert (outcome.state, outcome.message) == (AttemptState.LOST, "released by alice")
    assert ledger.renew(running, 9).revoked == ()
    assert ledger.renew(running, 4711).revoked == (0,)
    ledger.end_attempt(running, 0, 1, 1, Outcome(AttemptState.SUCCEEDED, exit_code=0))  # too late
    assert ledger.replicas(running)[0].outcome.state is AttemptState.LOST
    with pytest.raises(LedgerError, match="it is revoked"):
        ledger.confirm(confirmed, 4711)
    with pytest.raises(LedgerError, match="no longer holds"):
        ledger.start_attempt(running, 0, 1, confirmed, "token-2")
    (other,) = reserve("other", [0], devices(1)).members
    ledger.release(confirmed)
    assert ledger.renew(running, 4711).revoked == ()
    assert ledger.member(key_of(ledger, "other"), 0) == other


def test_a_replica_that_has_devices_again_is_not_told_of_an_earlier_revocation(reserve, ledger, confirmed, running):
    ledger.release_by_hand(confirmed.reservation_id, "alice")
    (again,) = reserve("flights", [0], devices(1)).members
    assert again.fence > confirmed.fence
    assert ledger.renew(running, 4711).revoked == ()
    ledger.confirm(again, 4711)
    assert ledger.renew(running, 4711).revoked == ()


def test_releasing_what_is_not_live_is_refused(reserve, ledger, confirmed, time):
    with pytest.raises(LedgerError, match="no live reservation 99"):
        ledger.release_by_hand(99, "alice")
    ledger.release(confirmed)
    with pytest.raises(LedgerError, match="no live reservation"):
        ledger.release_by_hand(confirmed.reservation_id, "alice")
    (unconfirmed,) = reserve("other", [0], devices(1)).members
    time.seconds += 61
    with pytest.raises(LedgerError, match="no live reservation"):
        ledger.release_by_hand(unconfirmed.reservation_id, "alice")


# --- clocks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [timedelta(hours=-1), timedelta(hours=1)])
def test_wall_time_that_steps_changes_nothing(ledger, ledger_settings, gang, time, step):
    now = datetime(2026, 10, 3, 12, 0, tzinfo=UTC)
    wall = [now]
    stepped = open_ledger(ledger_settings, clock=Clock("boot-1", lambda: time.seconds, lambda: wall[0]))
    kept, other = (stepped.reserve(gang(name), request(), [0], HOST, devices(2)).members[0] for name in ("a", "b"))
    stepped.confirm(kept, 4711)
    assert isinstance(stepped.reserve(gang("waiting"), request(), [0], HOST, devices(2), Turn()), Refused)
    wall[0] = now + step
    stepped.renew(gang("a"), 4711)
    confirmed, reserved = sorted(LedgerReader(stepped).reservations(), key=lambda row: row.reservation_id)
    assert (confirmed.is_suspect, reserved.expires_in_seconds) == (False, 60.0)
    assert stepped.look(gang("waiting")).waited_seconds == 0
    time.seconds += 59
    stepped.confirm(other, 4711)
    stepped.close()


def test_a_host_that_was_suspended_finds_the_confirmed_and_not_the_reserved(reserve, ledger, gang, time):
    kept, lost = (reserve(name, [0], devices(2)).members[0] for name in ("a", "b"))
    ledger.confirm(kept, 4711)
    time.seconds += 86400  # CLOCK_BOOTTIME goes on while a host sleeps
    assert ledger.member(gang("a"), 0) is not None
    with pytest.raises(LedgerError, match="it is expired"):
        ledger.confirm(lost, 4711)


# --- retention -----------------------------------------------------------------------------------------------------


def test_pruning_removes_gangs_that_have_ended_and_never_gives_a_fence_again(reserve, ledger, confirmed, running, time):
    ledger.end_attempt(running, 0, 1, 1, Outcome(AttemptState.SUCCEEDED, exit_code=0))
    ledger.release(confirmed)
    time.seconds += 3600
    reserve("holding", [0], devices(2))
    ledger.confirm(ledger.member(key_of(ledger, "holding"), 0), 4711)
    reserve("waiting", [0, 1], devices(2))
    time.seconds += 10
    assert ledger.prune(3700) == []
    planned = ledger.prune(3600, dry_run=True)
    assert [(gang.dag_id, gang.run_id, gang.folder) for gang in planned] == [("flights", "run x", "/run")]
    assert ledger.prune(3600) == planned
    assert ledger.prune(3600) == []
    assert {row.dag_id for row in LedgerReader(ledger).runs()} == {"holding", "waiting"}
    assert ledger.replicas(running) == {}
    assert [gang.dag_id for gang in ledger.prune(0)] == []
    time.seconds += 86400
    assert [gang.dag_id for gang in ledger.prune(3600)] == ["waiting"]


def test_fences_go_on_after_all_was_pruned(reserve, ledger, time):
    (first,) = reserve("flights", [0], devices(1)).members
    ledger.release(first)
    time.seconds += 3600
    assert len(ledger.prune(60)) == 1
    assert reserve("flights", [0], devices(1)).members[0].fence > first.fence


# --- what is shown -------------------------------------------------------------------------------------------------


def test_hosts_and_attempts_are_shown(ledger, confirmed, running):
    (host,) = LedgerReader(ledger).hosts()
    assert (host.name, host.devices) == ("gpu-host", 1)
    ledger.start_attempt(running, 0, 1, confirmed, "token-2")
    assert [(row.attempt, row.state) for row in LedgerReader(ledger).attempts(running.key)] == [
        (1, "lost"),
        (2, "starting"),
    ]


def test_a_look_that_finds_the_same_writes_no_device(ledger):
    readings = devices(3)
    ledger.register_host(HOST, readings)
    ledger._transactions.write(lambda session, _: session.execute(text("UPDATE devices SET reason = 'kept'")))
    ledger.register_host(HOST, readings)
    assert {row.reason for row in LedgerReader(ledger).devices()} == {"kept"}
    ledger.register_host(HOST, [*readings[:2], replace(readings[2], health=Health.BUSY, reason="pid 7")])
    assert [row.reason for row in LedgerReader(ledger).devices()] == ["", "", "pid 7"]
