"""Whatever order gangs reserve, confirm, release and wait in: no device has two holders, no gang a part of its own.

And none is overtaken: all devices are alike here and nobody declares a limit, so what is free goes to who is first.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace

import hypothesis
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from airflow_tf.core.errors import DevicesNeverFitError, LedgerError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted, Turn
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.read import LedgerReader
from tests.ledger.conftest import HOST, FakeTime, devices, request

DEVICES, LIFE_SECONDS, LOOK_SECONDS = 4, 60.0, 5.0
GANGS = st.sampled_from(["a", "b", "c"])


@dataclass
class Place:
    """What the model knows of a waiter: its place, what it wants, and when it looked last."""

    order: tuple[int, float, int]
    per_replica: int
    looked: float


class Gangs(RuleBasedStateMachine):
    """Compares the ledger with a model: (gang, replica) -> (devices, time of expiry or None once confirmed).

    ``queue`` is (gang, number of replicas) -> place.
    """

    def __init__(self, settings, url, forget):
        super().__init__()
        self.forget = forget
        self.time = FakeTime()
        own = replace(settings, ledger_url=url, reservation_seconds=LIFE_SECONDS)
        self.ledger = open_ledger(own, clock=self.time.clock())
        self.held = {}
        self.members = {}
        self.queue = {}
        self.arrivals = 0
        self.fence = 0

    def teardown(self):
        self.ledger.close()
        self.forget()

    def key(self, gang):
        return GangKey(self.ledger.ledger_id, gang, "run", "train")

    def expire(self):
        self.held = {
            part: (uuids, expiry)
            for part, (uuids, expiry) in self.held.items()
            if expiry is None or expiry > self.time.seconds
        }
        alive = self.time.seconds - 3 * LOOK_SECONDS
        self.queue = {where: place for where, place in self.queue.items() if place.looked >= alive}

    def missing(self, gang, replicas):
        return [number for number in range(replicas) if (gang, number) not in self.held]

    def left(self, gang, order):
        """Return how many devices are left when all that are before a gang have what they want, or all there is."""
        left = DEVICES - sum(len(uuids) for uuids, _ in self.held.values())
        for (other, count), place in sorted(self.queue.items(), key=lambda item: item[1].order):
            if other != gang and place.order < order:
                left -= min(left, len(self.missing(other, count)) * place.per_replica)
        return left

    @rule(gang=GANGS, replicas=st.integers(1, 3), per_replica=st.integers(0, 2), priority=st.integers(0, 1))
    def reserve(self, gang, replicas, per_replica, priority):
        self.expire()
        wanted = len(self.missing(gang, replicas)) * per_replica
        mine = self.queue.get((gang, replicas))
        self.arrivals += 1
        arrived = mine.order[1:] if mine is not None else (self.time.seconds, self.arrivals)
        left = self.left(gang, (-priority, *arrived))
        turn, asked = Turn(priority, look_seconds=LOOK_SECONDS), range(replicas)
        try:
            answer = self.ledger.reserve(self.key(gang), request(per_replica), asked, HOST, devices(DEVICES), turn)
        except DevicesNeverFitError:
            assert replicas * per_replica > DEVICES
            return
        if not isinstance(answer, Granted):
            assert wanted > left
            assert answer.free == left
            self.queue[gang, replicas] = Place((-priority, *arrived), per_replica, self.time.seconds)
            for part in [(gang, number) for number in range(replicas)]:
                if part in self.held and self.held[part][1] is not None:
                    del self.held[part]  # who waits holds nothing that is not in use
            return
        assert wanted <= left
        self.queue = {where: place for where, place in self.queue.items() if where[0] != gang or where[1] > replicas}
        for member in answer.members:
            part = (gang, member.replica)
            if part in self.held:
                assert [device.uuid for device in member.devices] == self.held[part][0]
            else:
                assert len(member.devices) == per_replica
                assert member.fence > self.fence
            expiry = None if part in self.held and self.held[part][1] is None else self.time.seconds + LIFE_SECONDS
            self.held[part] = ([device.uuid for device in member.devices], expiry)
            self.members[part] = member
        self.fence = max(self.fence, answer.reservation_id)

    @rule(gang=GANGS, replica=st.integers(0, 2))
    def confirm(self, gang, replica):
        self.expire()
        part = (gang, replica)
        if part not in self.members:
            return
        try:
            self.ledger.confirm(self.members[part], 1)
        except LedgerError:
            assert part not in self.held
        else:
            self.held[part] = (self.held[part][0], None)

    @rule(gang=GANGS, replica=st.integers(0, 2))
    def release(self, gang, replica):
        if (gang, replica) in self.members:
            self.ledger.release(self.members[gang, replica])
            self.held.pop((gang, replica), None)

    @rule(gang=GANGS)
    def renew(self, gang):
        self.expire()
        self.ledger.renew(self.key(gang), 1)
        for part, (uuids, expiry) in self.held.items():
            if part[0] == gang and expiry is not None:
                self.held[part] = (uuids, self.time.seconds + LIFE_SECONDS)

    @rule(gang=GANGS)
    def look(self, gang):
        self.expire()
        own = {where: place for where, place in self.queue.items() if where[0] == gang}
        found = self.ledger.look(self.key(gang))
        assert (found is None) == (not own)
        for place in own.values():
            place.looked = self.time.seconds
        if found is not None:
            promising = [
                len(self.missing(*where)) * place.per_replica <= self.left(gang, place.order)
                for where, place in own.items()
            ]
            assert found.is_promising == any(promising)

    @rule(gang=GANGS)
    def withdraw(self, gang):
        self.ledger.withdraw(self.key(gang))
        self.queue = {where: place for where, place in self.queue.items() if where[0] != gang}

    @rule(gang=GANGS)
    def release_by_hand(self, gang):
        self.expire()
        mine = [member for part, member in self.members.items() if part[0] == gang and part in self.held]
        if mine:
            self.ledger.release_by_hand(mine[0].reservation_id, "alice")
            for part in [(gang, each.replica) for each in mine if each.fence == mine[0].fence]:
                del self.held[part]

    @rule(seconds=st.sampled_from([1.0, 10.0, 30.0, 61.0]))
    def wait(self, seconds):
        self.time.seconds += seconds

    @invariant()
    def the_ledger_says_the_same(self):
        self.expire()
        rows = LedgerReader(self.ledger).reservations()
        found = {(row.gang_label.partition(" ")[0], row.replica): list(row.devices) for row in rows}
        assert found == {part: uuids for part, (uuids, _) in self.held.items()}
        given = [uuid for uuids in found.values() for uuid in uuids]
        assert len(given) == len(set(given))


EXAMPLES = hypothesis.settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_on_sqlite(settings, tmp_path):
    def gangs():
        folder = tempfile.TemporaryDirectory(dir=tmp_path)
        return Gangs(settings, f"sqlite:///{folder.name}/ledger.db", folder.cleanup)

    run_state_machine_as_test(gangs, settings=EXAMPLES)


def test_on_postgresql(settings, postgres_server):
    def gangs():
        url = postgres_server.create_database()
        return Gangs(settings, url, lambda: postgres_server.drop_database(url))

    run_state_machine_as_test(gangs, settings=EXAMPLES)
