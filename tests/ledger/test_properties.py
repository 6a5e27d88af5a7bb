"""Whatever order gangs reserve, confirm, release and wait in: no device has two holders, no gang a part of its own."""

from __future__ import annotations

import tempfile
from dataclasses import replace

import hypothesis
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from airflow_tf.core.errors import DevicesNeverFitError, LedgerError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.read import LedgerReader
from tests.ledger.conftest import HOST, FakeTime, devices, request

DEVICES, LIFE_SECONDS = 4, 60.0
GANGS = st.sampled_from(["a", "b", "c"])


class Gangs(RuleBasedStateMachine):
    """Compares the ledger with a model: (gang, replica) -> (devices, time of expiry or None once confirmed)."""

    def __init__(self, settings, url, forget):
        super().__init__()
        self.forget = forget
        self.time = FakeTime()
        own = replace(settings, ledger_url=url, reservation_seconds=LIFE_SECONDS)
        self.ledger = open_ledger(own, clock=self.time.clock())
        self.held = {}
        self.members = {}
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

    @rule(gang=GANGS, replicas=st.integers(1, 3), per_replica=st.integers(0, 2))
    def reserve(self, gang, replicas, per_replica):
        self.expire()
        missing = [number for number in range(replicas) if (gang, number) not in self.held]
        free = DEVICES - sum(len(uuids) for uuids, _ in self.held.values())
        try:
            answer = self.ledger.reserve(self.key(gang), request(per_replica), range(replicas), HOST, devices(DEVICES))
        except DevicesNeverFitError:
            assert replicas * per_replica > DEVICES
            return
        if not isinstance(answer, Granted):
            assert len(missing) * per_replica > free
            assert answer.free == free
            return
        assert len(missing) * per_replica <= free
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

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0]))
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
