"""Contract of views: generations of gangs, signs of life, stops, clocks that are kept, positions in the output."""

from __future__ import annotations

import pytest

from airflow_tf.core.identity import View
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import AttemptState, ExitCause
from tests.ledger.conftest import devices

FAILED = Outcome(AttemptState.FAILED, ExitCause.KILLED, "killed", -9)


@pytest.fixture
def key(ledger, gang):
    found = gang("flights")
    ledger.open_gang(found, 3, "/run")
    return found


@pytest.fixture
def members(reserve, ledger, key):
    found = reserve("flights", [0, 1, 2], devices(3)).members
    for member in found:
        ledger.confirm(member, 4711)
    return found


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        # replica:try:first try=generation
        ("siblings start in one", "0:1:1=1 1:1:1=1 2:1:1=1"),
        ("retries stay", "0:1:1=1 1:1:1=1 1:2:1=1 0:2:1=1"),
        ("all are cleared: the first opens, the others join", "0:1:1=1 1:1:1=1 2:1:1=1 1:2:2=2 0:2:2=2 2:2:2=2"),
        ("cleared siblings have tries of their own", "0:1:1=1 1:1:1=1 1:2:1=1 1:3:1=1 1:4:4=2 0:2:2=2"),
        ("who was not cleared goes along", "0:1:1=1 1:1:1=1 0:2:2=2 1:2:1=2"),
        ("cleared after it went along: another one", "0:1:1=1 1:1:1=1 0:2:2=2 1:2:1=2 1:3:3=3 0:3:2=3"),
        ("cleared twice in a row", "0:1:1=1 0:2:2=2 0:3:3=3 1:1:1=3 1:2:2=4"),
        ("a late sibling joins the newest", "0:1:1=1 0:2:2=2 2:1:1=2 2:2:1=2"),
    ],
)
def test_a_gang_has_one_generation_for_all(ledger, key, case, steps):
    for step in steps.split():
        entered, _, generation = step.partition("=")
        replica, try_number, first_try = map(int, entered.split(":"))
        view = View(f"ti-{replica}-{try_number}", try_number, first_try)
        assert ledger.enter(key, replica, view, together=True).generation == int(generation), (case, step)


def test_a_gang_s_new_generation_is_that_of_every_replica_at_once(ledger, key, members):
    for replica in range(3):
        ledger.enter(key, replica, View(f"a{replica}", 1, 1), together=True)
        ledger.start_attempt(key, replica, 1, members[replica], f"t{replica}")
        ledger.end_attempt(key, replica, 1, 1, FAILED)
    ledger.cancel(key.key, "alice")
    ledger.enter(key, 1, View("b1", 2, 2), together=True)
    records = ledger.replicas(key)
    assert {number: (record.generation, record.first_try) for number, record in records.items()} == {
        0: (2, 1),
        1: (2, 2),
        2: (2, 1),
    }
    assert [record.outcome for record in records.values()] == [None] * 3
    assert records[0].cancelled_by is None
    assert ledger.start_attempt(key, 0, 2, members[0], "t4") == 1  # before its own view has come


CLEARED = Outcome(AttemptState.STOPPED, ExitCause.MARKED, "its task was cleared")


@pytest.mark.parametrize(
    ("outcome", "generation"),
    [
        (CLEARED, 2),
        (FAILED, 1),
        (Outcome(AttemptState.STOPPED, ExitCause.MARKED, "its task was marked failed"), 1),
        (Outcome(AttemptState.STOPPED, ExitCause.STOPPED, "its task was cleared"), 1),
    ],
)
def test_the_try_after_a_clear_begins_anew_although_airflow_has_not_raised_the_tries(
    ledger, key, members, outcome, generation
):
    ledger.enter(key, 0, View("a", 1, 1))
    ledger.start_attempt(key, 0, 1, members[0], "t1")
    ledger.end_attempt(key, 0, 1, 1, outcome)
    assert ledger.enter(key, 0, View("b", 2, 1)).generation == generation
    assert ledger.enter(key, 0, View("c", 3, 1)).generation == generation  # a retry of that one


def test_a_gang_of_which_two_were_cleared_begins_anew_once(ledger, key, members):
    for replica in range(3):
        ledger.enter(key, replica, View(f"a{replica}", 1, 1), together=True)
        ledger.start_attempt(key, replica, 1, members[replica], f"t{replica}")
        ledger.end_attempt(key, replica, 1, 1, CLEARED)
    assert ledger.enter(key, 1, View("b1", 2, 1), together=True).generation == 2
    assert ledger.enter(key, 2, View("b2", 2, 2), together=True).generation == 2
    assert ledger.enter(key, 0, View("a0", 1, 1), together=True).generation == 2


def test_replicas_that_only_a_sibling_opened_are_not_told_before_they_start(ledger, key, members):
    ledger.enter(key, 0, View("a", 1, 1), together=True)
    assert set(ledger.replicas(key)) == {0}
    ledger.start_attempt(key, 1, 1, members[1], "t1")
    assert set(ledger.replicas(key)) == {0, 1}


def test_a_generation_keeps_what_it_began_with(ledger, key):
    assert ledger.enter(key, 0, View("a", 1, 1), together=True, spec="one").spec == "one"
    assert ledger.enter(key, 1, View("a", 1, 1), together=True, spec="of its own").spec == "of its own"
    assert ledger.enter(key, 0, View("b", 2, 1), together=True, spec="changed").spec == "one"
    assert ledger.enter(key, 0, View("c", 3, 3), together=True, spec="changed").spec == "changed"
    assert ledger.enter(key, 2, View("a", 1, 1), spec="alone").spec == "alone"


def test_the_clock_of_a_view_is_kept_over_those_that_attach_to_the_same_attempt(ledger, key, members, time):
    ledger.enter(key, 0, View("a", 1, 1))
    time.seconds += 10
    assert ledger.enter(key, 0, View("a", 1, 1)).watched_seconds == 0  # nothing was started yet
    ledger.start_attempt(key, 0, 1, members[0], "t1")
    time.seconds += 10
    assert ledger.enter(key, 0, View("b", 2, 1)).watched_seconds == 10
    time.seconds += 10
    assert ledger.replicas(key)[0].watched_seconds == 20
    ledger.end_attempt(key, 0, 1, 1, FAILED)
    assert ledger.enter(key, 0, View("b", 2, 1)).watched_seconds == 20  # another attempt of the same try may follow
    assert ledger.enter(key, 0, View("c", 3, 1)).watched_seconds == 0


def test_the_clock_of_waiting_is_each_try_s_own(ledger, key, members, time):
    ledger.enter(key, 0, View("a", 1, 1))
    ledger.start_attempt(key, 0, 1, members[0], "t1")
    time.seconds += 10
    ledger.enter(key, 0, View("b", 2, 1))
    assert ledger.seconds_waiting(key, 0, View("b", 2, 1)) == 0


def test_a_supervisor_learns_how_long_each_replica_was_not_looked_after(ledger, key, time):
    view, other = View("a", 1, 1), View("b", 1, 1)
    ledger.enter(key, 0, view)
    ledger.enter(key, 1, other)
    time.seconds += 20
    assert ledger.renew_view(key, 0, view)
    time.seconds += 10
    assert ledger.renew(key, 4711).unseen_seconds == {0: 10, 1: 30}
    ledger.enter(key, 0, View("c", 2, 1))
    assert ledger.renew(key, 4711).unseen_seconds[0] == 0


def test_an_older_view_s_signs_and_stops_are_refused(ledger, key):
    old, new = View("a", 1, 1), View("b", 2, 1)
    ledger.enter(key, 0, old)
    ledger.enter(key, 0, new)
    assert not ledger.renew_view(key, 0, old, (1, 500))
    assert not ledger.ask_stop(key, 0, old, "too late")
    assert not ledger.ask_stop(key, 1, new, "never entered")
    assert ledger.renew(key, 4711).stops == {}
    assert ledger.replicas(key)[0].log_position == (0, 0)


def test_a_stop_is_told_until_a_newer_view_comes_or_a_new_generation_begins(ledger, key):
    ledger.enter(key, 0, View("a", 1, 1))
    assert ledger.ask_stop(key, 0, View("a", 1, 1), "its task was killed")
    assert ledger.renew(key, 4711).stops == ledger.renew(key, 4711).stops == {0: "its task was killed"}
    ledger.enter(key, 0, View("a", 1, 1))
    assert ledger.renew(key, 4711).stops == {0: "its task was killed"}
    ledger.enter(key, 0, View("b", 2, 1))
    assert ledger.renew(key, 4711).stops == {}


def test_a_stop_of_a_gang_member_ends_with_a_sibling_s_new_generation(ledger, key):
    ledger.enter(key, 0, View("a", 1, 1), together=True)
    ledger.enter(key, 1, View("b", 1, 1), together=True)
    ledger.ask_stop(key, 0, View("a", 1, 1), "its task was killed")
    ledger.enter(key, 1, View("c", 2, 2), together=True)
    assert ledger.renew(key, 4711).stops == {}


def test_how_far_the_output_was_shown_is_handed_on_within_a_generation(ledger, key):
    ledger.enter(key, 0, View("a", 1, 1))
    ledger.renew_view(key, 0, View("a", 1, 1), (2, 4096))
    assert ledger.enter(key, 0, View("b", 2, 1)).log_position == (2, 4096)
    ledger.renew_view(key, 0, View("b", 2, 1))
    assert ledger.replicas(key)[0].log_position == (2, 4096)
    assert ledger.enter(key, 0, View("c", 3, 3)).log_position == (0, 0)
