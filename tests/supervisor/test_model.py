"""Ledger and supervisors together: whatever is asked, dies, hangs and comes back in whatever order, devices are safe.

No device has two users; nobody who waits holds any; a fence is used once; in the end all is given back.

The suite tries the same few sequences in every run. To hunt with 500 others, chosen anew each time::

    pytest tests/supervisor/test_model.py -k sqlite --hypothesis-profile=hunt
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import select

from airflow_tf.core import identity
from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.launch import Plan, ReplicaLaunch
from airflow_tf.core.ledger import Granted, Refused, Turn
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import MARKED_REASON, ExitCause, MemberState
from airflow_tf.devices.locks import DeviceLock
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.schema import LIVE, RUNNING, AttemptEntry, Base, HoldingEntry, MemberEntry
from airflow_tf.supervisor.acquire import acquire, take_devices, usable_members
from airflow_tf.supervisor.protocol import Attach
from airflow_tf.testing.postgres import PostgresServer
from tests.supervisor.world import Gang, Installation, Machine, Process, Supervisor, View, World

SLOTS = 2  # a gang has all of them, so that parts of others are in the way
GANGS = st.integers(0, 3)
REPLICAS = st.integers(0, 1)
SECONDS = st.sampled_from([1.0, 5.0, 20.0, 61.0, 130.0])
ORPHAN_GRACE_SECONDS = 90.0
MEMORY = "/dev/shm"  # thousands of transactions, each of which a disk would have to keep


class Model(RuleBasedStateMachine):
    """Two installations on one host, whose devices only the locks share, and a second host."""

    def __init__(
        self, urls: tuple[str, str], folder: Path, *, on_server: bool, forget: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.world = world = World(self.patch)
        self.folder = folder
        self.forget = forget
        for name, slots in (("one", SLOTS), ("two", 1)):
            home, locks = folder / name / "home", folder / name / "locks"
            home.mkdir(parents=True)
            world.machines.append(Machine(name, Settings(home, "", locks, slots)))
        one, two = world.machines
        with world.at(one):
            for name, url in zip("ab", urls, strict=True):
                world.installations.append(Installation(name, url, None if on_server else one, world))
        a, b = world.installations
        worker = Plan("sync", {"worker": 2}, restarts=1)
        alone = Plan(restarts=1)
        slot, half = DeviceRequest("cpu"), DeviceRequest("cpu", share_percent=50)
        world.gangs = [
            Gang("gang", a, one, 2, slot, worker),
            Gang("rival", a, one, 2, slot, replace(worker, restarts=0)),
            Gang("shares", b, one, 2, half, alone, priority=1),
            Gang("far", a, two, 1, slot, alone) if on_server else Gang("near", b, one, 2, slot, alone),
        ]
        for it in world.gangs:
            it.installation.ledger.open_gang(it.key, it.count, str(it.folder))

    # --- what tasks do ---------------------------------------------------------------------------------------------

    def ask(self, it: Gang, replicas: list[int]) -> Granted | Refused | None:
        """Ask for devices as sensors and tasks do; None while the ledger is away."""
        ledger, settings = it.installation.ledger, it.machine.settings
        if it.installation.is_away:
            return None
        with self.world.at(it.machine):
            answer = acquire(ledger, settings, it.key, it.request, replicas, Turn(it.priority, look_seconds=30.0))
        if isinstance(answer, Granted):
            new = {(each.fence, each.replica): each for each in answer.members}
            new = {part: member for part, member in new.items() if part not in it.members}
            assert all(fence > it.installation.fence for fence, _ in new), "a fence is given out again"
            it.members |= new
            it.installation.fence = max([it.installation.fence, *(fence for fence, _ in new)])
        else:
            held = [ledger.member(it.key, replica) for replica in replicas]
            assert not [each for each in held if each and each.state == MemberState.RESERVED], "it holds and waits"
        return answer

    @rule(number=GANGS)
    def reserve(self, number: int) -> None:
        it = self.world.gangs[number]
        self.ask(it, list(range(it.count)))

    @rule()
    def everybody_reserves(self) -> None:
        for number in range(len(self.world.gangs)):
            self.reserve(number)

    @rule(number=GANGS, leaves=st.booleans())
    def look_again(self, number: int, leaves: bool) -> None:
        it = self.world.gangs[number]
        if leaves:
            it.installation.ledger.withdraw(it.key)
        elif not it.installation.is_away:
            it.installation.ledger.look(it.key)

    @rule(number=GANGS, replica=REPLICAS, defers=st.booleans())
    def retry(self, number: int, replica: int, defers: bool) -> None:
        self.attach(number, replica, clears=False, defers=defers)

    @rule(number=GANGS, replica=REPLICAS, defers=st.booleans())
    def clear(self, number: int, replica: int, defers: bool) -> None:
        self.attach(number, replica, clears=True, defers=defers)

    @rule(number=GANGS)
    def start_all(self, number: int) -> None:
        for replica in range(self.world.gangs[number].count):
            self.attach(number, replica, clears=False, defers=False)

    @rule(number=GANGS)
    def some_come_and_go(self, number: int) -> None:
        """Run to its end what begins with the first replica; siblings that were reserved with it are yet to come."""
        self.attach(number, 0, clears=False, defers=False)
        for process in self.alive():
            if process.supervisor is self.world.gangs[number].supervisor and not process.survives_kill:
                process.end(0)
        self.world.settle()

    def attach(self, number: int, replica: int, clears: bool, defers: bool) -> None:
        """Start another try of a task, after a retry or a clear; it waits for no devices."""
        it = self.world.gangs[number]
        replica = min(replica, it.count - 1)
        if it.installation.is_away or (it.supervisor is not None and it.supervisor.is_frozen):
            return
        tried, first = it.tries.get(replica, (0, 1))
        it.tries[replica] = tried + 1, tried + 1 if clears else first
        view = identity.View(f"ti-{replica}-{tried + 1}", *it.tries[replica])
        ledger = it.installation.ledger
        record = ledger.enter(it.key, replica, view, together=it.plan.is_gang)
        numbers = list(range(it.count)) if it.plan.is_gang else [replica]
        if record.cancelled_by is not None:
            return
        supervised = it.supervisor is not None
        with self.world.at(it.machine):
            members = usable_members(ledger, it.machine.settings, it.key, numbers, is_supervised=supervised)
        if members is None:
            answer = self.ask(it, numbers)
            if not isinstance(answer, Granted):
                return
            members = answer.members
        launches = tuple(
            ReplicaLaunch(each, it.count, "train.py", "/code", require_checkpoint=False, kill_grace_seconds=5.0)
            for each in numbers
        )
        request = Attach(
            view, replica, record.generation, it.plan, launches, members, 1, ORPHAN_GRACE_SECONDS
        ).to_json()
        supervisor, connection = self.world.supervise(it), View()
        supervisor._connections.add(connection)
        self.world.do(supervisor, supervisor._handle(connection, request))
        if defers:
            supervisor.lose(connection)
            self.world.settle()

    @precondition(lambda self: any(each._connections for each in self.world.supervisors))
    @rule(number=GANGS)
    def detach(self, number: int) -> None:
        supervisor = self.supervisor(number)
        for connection in list(supervisor._connections):
            supervisor.lose(connection)
        self.world.settle()

    @rule(number=GANGS, replica=REPLICAS, is_marked=st.booleans(), by_ledger=st.booleans(), is_old=st.booleans())
    def stop(self, number: int, replica: int, is_marked: bool, by_ledger: bool, is_old: bool) -> None:
        it = self.world.gangs[number]
        tried, first = it.tries.get(replica, (0, 1))
        view = identity.View(f"ti-{replica}-{tried}", tried - is_old, first)
        reason = f"{MARKED_REASON}marked failed" if is_marked else "enough"
        if by_ledger and not it.installation.is_away and replica in it.tries:
            it.installation.ledger.ask_stop(it.key, replica, view, reason)
        elif it.supervisor is not None and not it.supervisor.is_frozen and tried:
            message = {"type": "stop", "replica": replica, "view": view.to_json(), "reason": reason}
            cause = ExitCause.MARKED if is_marked else ExitCause.STOPPED
            self.world.do(it.supervisor, it.supervisor._handle(View(), message | {"cause": cause.value}))

    # --- what people do --------------------------------------------------------------------------------------------

    @rule(number=GANGS, cancels=st.booleans())
    def take_away(self, number: int, cancels: bool) -> None:
        it = self.world.gangs[number]
        member = it.installation.ledger.member(it.key, 0)
        if cancels:
            it.installation.ledger.cancel(it.key.key, "alice")
        elif member is not None:
            it.installation.ledger.release_by_hand(member.reservation_id, "alice")

    @rule(seconds=st.sampled_from([10.0, 500.0]))
    def prune(self, seconds: float) -> None:
        for installation in self.world.installations:
            gone = installation.ledger.prune(seconds)
            for it in self.world.gangs:
                if it.installation is installation and it.key.key in {each.key for each in gone}:
                    assert it.supervisor is None or it.supervisor.is_frozen or not it.supervisor._drives()
                    it.tries.clear()
                    installation.ledger.open_gang(it.key, it.count, str(it.folder))

    # --- what happens ----------------------------------------------------------------------------------------------

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        """Let time pass in steps of heartbeats, of which there are many in a long time."""
        for _ in range(min(4, int(seconds))):
            self.world.now += seconds / min(4, int(seconds))
            self.world.settle()

    @rule(seconds=st.sampled_from([3600.0, -3600.0]))
    def clock_is_set(self, seconds: float) -> None:
        for installation in self.world.installations:
            installation.wall_step_seconds += seconds
            if installation.epoch_of is None:
                installation.step_seconds += seconds

    @precondition(lambda self: not any(each.is_away for each in self.world.installations))
    @rule(number=st.integers(0, 1))
    def ledger_goes(self, number: int) -> None:
        self.world.installations[number].is_away = True

    @precondition(lambda self: any(each.is_away for each in self.world.installations))
    @rule()
    def ledgers_come_back(self) -> None:
        for installation in self.world.installations:
            installation.is_away = False

    def alive(self) -> list[Process]:
        return [process for process in self.world.processes if process.is_alive]

    @precondition(lambda self: self.alive())
    @rule(
        data=st.data(), code=st.sampled_from([0, 0, 1 << 8, 9]), what=st.sampled_from(["ends", "lost", "deaf", "stuck"])
    )
    def process(self, data: st.DataObject, code: int, what: str) -> None:
        """A program ends, loses its device, does not hear SIGTERM, or hangs in the kernel."""
        chosen = data.draw(st.integers(0, len(self.alive()) - 1))
        process = self.alive()[chosen]
        if what == "ends" and not process.survives_kill:
            process.end(code)
        elif what == "lost":
            number = int(process.token.split(".")[2])
            if number in process.supervisor.alarms and process.supervisor.is_alive:
                process.supervisor.alarms[number].set()
        else:
            process.ignores_term = True
            process.survives_kill = what == "stuck"
        self.world.settle()

    @precondition(lambda self: any(process.survives_kill for process in self.alive()))
    @rule()
    def stuck_processes_go(self) -> None:
        for process in self.alive():
            process.survives_kill = False

    def supervisor(self, number: int) -> Supervisor:
        return self.world.supervisors[number % len(self.world.supervisors)]

    @precondition(lambda self: self.world.supervisors)
    @rule(number=GANGS, with_replicas=st.booleans())
    def supervisor_dies(self, number: int, with_replicas: bool) -> None:
        self.world.crash(self.supervisor(number), with_replicas=with_replicas)

    @rule(number=GANGS, calls=st.integers(1, 12), before=st.booleans())
    def supervisor_will_die(self, number: int, calls: int, before: bool) -> None:
        """It, or the next one, dies before or after one of its next calls of ledger, lock or kernel."""
        it = self.world.gangs[number]
        self.world.dies_before = before
        if it.supervisor is None:
            it.fuse = calls
            self.start_all(number)
        else:
            it.supervisor.fuse = calls

    @precondition(lambda self: self.world.supervisors)
    @rule(number=GANGS)
    def supervisor_stops_or_goes_on(self, number: int) -> None:
        supervisor = self.supervisor(number)
        supervisor.is_frozen = not supervisor.is_frozen
        self.world.settle()

    @rule(number=st.integers(0, 1))
    def host_is_started_anew(self, number: int) -> None:
        self.world.reboot(self.world.machines[number])

    # --- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def devices_are_safe(self) -> None:
        self.no_device_has_two_users()
        self.what_is_used_is_locked_while_its_supervisor_lives()
        self.nobody_ends_what_a_living_supervisor_runs()
        self.what_is_over_is_given_back()
        self.no_device_is_given_twice()
        self.no_attempt_runs_without_its_devices()

    def no_device_has_two_users(self) -> None:
        used: Counter[tuple[str, str]] = Counter()
        for process in self.alive():
            used.update({(process.machine.name, uuid): percent for uuid, percent in process.parts.items()})
        assert all(percent <= 100 for percent in used.values()), used

    def what_is_used_is_locked_while_its_supervisor_lives(self) -> None:
        for process in self.alive():
            if process.supervisor.is_alive:
                assert process.parts.keys() <= process.supervisor.locked()

    def nobody_ends_what_a_living_supervisor_runs(self) -> None:
        assert self.world.wrongly_swept == []

    def what_is_over_is_given_back(self) -> None:
        for each in self.world.supervisors:
            if not (each.is_frozen or each.gang.installation.is_away or each._drives()):
                assert each._quarantine or not each.locked()
                assert not [member for member in each.holds_in_ledger() if member.state == MemberState.CONFIRMED]

    def no_device_is_given_twice(self) -> None:
        for installation in self.world.installations:
            given: Counter[tuple[str, str]] = Counter()
            parts = select(HoldingEntry.host_id, HoldingEntry.uuid, HoldingEntry.share_percent)
            for host, uuid, percent in installation.ledger.read(lambda session, _: session.execute(parts).all()):  # noqa: B023 (called at once)
                given[host, uuid] += percent
            assert all(percent <= 100 for percent in given.values()), given

    def no_attempt_runs_without_its_devices(self) -> None:
        """An attempt that has not ended is ended when its devices are taken back: none may have none."""
        running = select(AttemptEntry).join(MemberEntry).where(AttemptEntry.state.in_(RUNNING))
        query = running.where(MemberEntry.state.not_in(LIVE)).with_only_columns(AttemptEntry.token)
        for installation in self.world.installations:
            assert installation.ledger.read(lambda session, _: session.scalars(query).all()) == []

    # --- the end ---------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self.all_is_given_back()
        finally:
            for supervisor in self.world.supervisors:
                self.world.gone(supervisor)
            self.world.close()
            self.patch.undo()
            shutil.rmtree(self.folder)
            for installation in self.world.installations:
                self.forget(installation.url)

    def all_is_given_back(self) -> None:
        world = self.world
        self.stuck_processes_go()
        self.ledgers_come_back()
        for supervisor in world.supervisors:
            supervisor.is_frozen = False
            supervisor._terminate()
            for connection in list(supervisor._connections):
                supervisor.lose(connection)
        for _ in range(20):
            self.pass_time(61.0)
        assert world.supervisors == []
        self.clocks_go_on()
        for it in world.gangs:
            it.installation.ledger.withdraw(it.key)
        places = {(it.installation.name, it.machine.name): (it.installation, it.machine) for it in world.gangs}
        for installation, machine in places.values():
            self.takes_all(installation, machine)
        assert self.alive() == []
        self.clocks_go_on()
        for installation in world.installations:
            installation.ledger.prune(10.0)
            self.keeps_nothing(installation)

    def clocks_go_on(self) -> None:
        """Let more time pass than clocks were set back in all."""
        for installation in self.world.installations:
            installation.step_seconds += 200_000.0

    def takes_all(self, installation: Installation, machine: Machine) -> None:
        """A new gang gets all devices of a host, and can use them."""
        last = Gang("last", installation, machine, machine.settings.cpu_slots, DeviceRequest("cpu"), Plan())
        answer = self.ask(last, list(range(last.count)))
        assert isinstance(answer, Granted), answer
        with self.world.at(machine):
            taken = [lock for member in answer.members for lock in take_devices(member, machine.settings)]
            assert len(taken) == last.count
            for lock in taken:
                lock.give_back()
                assert not DeviceLock(machine.settings.lock_dir, lock.uuid).is_held()
        for member in answer.members:
            installation.ledger.release(member)

    def keeps_nothing(self, installation: Installation) -> None:
        tables = [
            table for table in Base.metadata.sorted_tables if "gang_key" in table.columns or table.name == "gangs"
        ]
        counts = installation.ledger.read(
            lambda session, _: {table.name: list(map(tuple, session.execute(select(table)).all())) for table in tables}
        )
        assert not any(counts.values()), "\n".join(f"{name} {row}" for name, rows in counts.items() for row in rows)


def examples(count: int) -> hypothesis.settings:
    """Return settings for so many sequences in the suite, for as many as its profile says in a hunt."""
    profile = hypothesis.settings.default
    return hypothesis.settings(
        max_examples=count if profile.derandomize else profile.max_examples,
        stateful_step_count=40,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def blanks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two empty ledgers to copy: to make one takes a hundred times as long."""
    found = [tmp_path_factory.mktemp("blank", numbered=True) / "ledger.db" for _ in range(2)]
    for path in found:
        open_ledger(Settings(path.parent, f"sqlite:///{path}", path.parent, 0)).close()
    return found


def test_on_sqlite(blanks: list[Path]) -> None:
    def model() -> Model:
        folder = Path(tempfile.mkdtemp(dir=MEMORY))
        for name, blank in zip("ab", blanks, strict=True):
            (folder / name).mkdir(mode=0o700)
            shutil.copy(blank, folder / name)
        urls = f"sqlite:///{folder}/a/ledger.db", f"sqlite:///{folder}/b/ledger.db"
        return Model(urls, folder, on_server=False)

    run_state_machine_as_test(model, settings=examples(25))


def test_on_postgresql(postgres_server: PostgresServer) -> None:
    def model() -> Model:
        urls = postgres_server.create_database(), postgres_server.create_database()
        folder = Path(tempfile.mkdtemp(dir=MEMORY))
        return Model(urls, folder, on_server=True, forget=postgres_server.drop_database)

    run_state_machine_as_test(model, settings=examples(5))
