"""A world of hosts, processes and clocks in one process, around the real supervisor, device locks and ledger.

Only what the kernel does is played: which process lives, who reaps it, what a boot takes along, how time passes.
A supervisor is the real :class:`GangSupervisor` on an event loop of its own, which runs until it has nothing to do and
whose time is the world's. What would block in a thread happens at once; at each such point a supervisor may die.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import selectors
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_tf.core.causes import Evidence
from airflow_tf.core.devices import DeviceRequest, Host, Member
from airflow_tf.core.errors import LedgerUnavailableError
from airflow_tf.core.identity import GangKey, RunFolders
from airflow_tf.core.launch import GangLaunch, Plan, ReplicaLaunch
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import ExitCause
from airflow_tf.devices import locks
from airflow_tf.devices.locks import DeviceLock
from airflow_tf.ledger import Clock, Ledger, open_ledger
from airflow_tf.supervisor import acquire, attempt, drive, gang, quarantine, rendezvous, seat
from airflow_tf.supervisor.attempt import Alarm, Attempt, ReplicaRun, Watchdog
from airflow_tf.supervisor.processes import ReplicaProcess
from airflow_tf.supervisor.sweep import ProcessMark

TICKS = os.sysconf("SC_CLK_TCK")
FIRST_PID = 100
START = datetime(2026, 10, 3, 12, 0, tzinfo=UTC)


@dataclass
class Machine:
    """A host with device locks of its own."""

    name: str
    settings: Settings
    boots: int = 1
    booted_at: float = 0.0

    @property
    def boot_id(self) -> str:
        return f"{self.name}-boot-{self.boots}"

    @property
    def host(self) -> Host:
        return Host(f"{self.name}-place", self.name, self.boot_id)


@dataclass
class Process:
    """A replica's process; it uses its devices until it is gone, whoever forgot it."""

    machine: Machine
    token: str
    pid: int
    parts: Mapping[str, int]
    status: asyncio.Future[int | None]
    supervisor: Supervisor
    ignores_term: bool = False
    survives_kill: bool = False
    is_alive: bool = True
    died_at: float | None = None
    is_forked: bool = False

    def send(self, number: int) -> None:
        if number == signal.SIGTERM and not self.ignores_term and not self.survives_kill:
            self.end(0)

    def end(self, wait_status: int) -> None:
        if self.is_alive:
            self.is_alive, self.died_at = False, self.supervisor.world.now
            if self.supervisor.is_alive and not self.status.done():
                self.status.set_result(wait_status)

    def close(self) -> None:
        return


@dataclass
class Installation:
    """A ledger and who uses it."""

    name: str
    url: str
    epoch_of: Machine | None
    world: World
    ledger: Ledger = field(init=False)
    is_away: bool = False
    step_seconds: float = 0.0
    wall_step_seconds: float = 0.0
    fence: int = 0

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Open the ledger, with the clock of its host's boot or with that of a database server."""
        machine = self.epoch_of
        clock = Clock(
            machine.boot_id if machine else "server",
            lambda: self.world.now - (machine.booted_at if machine else 0.0) + self.step_seconds,
            lambda: START + timedelta(seconds=self.world.now + self.step_seconds + self.wall_step_seconds),
            host_now=lambda: self.world.boot_seconds,
        )
        settings = Settings(Path("/nowhere"), self.url, Path("/nowhere"), 0, reservation_seconds=60.0)
        self.ledger = open_ledger(settings, clock=clock)


class IdleSelector(selectors.DefaultSelector):
    """Stops its loop instead of waiting."""

    on_idle: Callable[[], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self.on_idle()
        return super().select(0)


class WorldLoop(asyncio.SelectorEventLoop):
    """An event loop in the world's time."""

    def __init__(self, world: World) -> None:
        self._world = world
        selector = IdleSelector()
        super().__init__(selector)
        selector.on_idle = self.stop

    def time(self) -> float:
        return self._world.now


class View:
    """A view's connection."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def notify(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    @property
    def is_done(self) -> bool:
        """Tell whether it has nothing more to wait for, and closes its connection."""
        return any(message["type"] in {"result", "refused", "superseded"} for message in self.messages)


class Supervisor(gang.GangSupervisor):
    """The real one, but for sockets, threads and processes; ``fuse`` is at which blocking call it dies."""

    def __init__(self, world: World, it: Gang, pid: int) -> None:
        launch = GangLaunch(
            it.key.to_json(), it.count, str(it.folder), "python", "spawn", {}, it.machine.settings.to_json()
        )
        super().__init__(launch, cast("Any", None), None)
        self._ledger_thread.shutdown()
        self.world, self.gang, self.pid = world, it, pid
        self.started_at = world.boot_seconds
        self.loop = WorldLoop(world)
        self.is_alive = True
        self.is_frozen = False
        self.fuse: int | None = None
        self.has_died_of_fuse = False
        self.locks: list[DeviceLock] = []
        self.confirmed: dict[tuple[int, int], Member] = {}
        self.alarms: dict[int, asyncio.Event] = {}
        self.tasks = [self.loop.create_task(self.serve_for_ever())]

    async def serve_for_ever(self) -> None:
        background = [asyncio.create_task(self._renew_for_ever()), asyncio.create_task(self._care_for_ever())]
        await self._until_done()
        for task in background:
            task.cancel()
        self.world.gone(self)

    def locked(self) -> set[str]:
        return {lock.uuid for lock in self.locks if lock._descriptor is not None}

    async def block(self, call: Callable[[], Any]) -> Any:
        """Do what blocks, at once; or die before or after it."""
        if not self.is_alive:
            raise asyncio.CancelledError
        is_last = False
        if self.fuse is not None:
            self.fuse -= 1
            is_last = self.fuse <= 0
            if is_last and self.world.dies_before:
                await self.die()
        result = call()
        if is_last:
            await self.die()
        return result

    async def die(self) -> None:
        self.has_died_of_fuse = True
        await self.loop.create_future()

    async def _on_ledger(self, call: Callable[[Any], Any]) -> Any:
        def work() -> Any:
            if self.gang.installation.is_away:
                raise LedgerUnavailableError("the ledger does not answer")
            return call(self.gang.installation.ledger)

        return await self.block(work)

    async def confirm(self, members: Sequence[Member]) -> None:
        await super().confirm(members)
        self.confirmed |= {(member.fence, member.replica): member for member in members}

    def holds_in_ledger(self) -> list[Member]:
        """Return what it has confirmed and not given back."""
        ledger = self.gang.installation.ledger
        live = [ledger.member(self.gang.key, number) for number in {number for _, number in self.confirmed}]
        return [each for each in live if each and (each.fence, each.replica) in self.confirmed]

    def _reap_orphans(self) -> None:
        return

    def testify(self, run: ReplicaRun, member: Member) -> Evidence:  # noqa: ARG002 (as the real one)
        return Evidence()

    def watchdogs(self, plan: Plan, members: Mapping[int, Member]) -> Sequence[Watchdog]:  # noqa: ARG002 (as the real one)
        """Return one that says that a device was lost when the world says so."""
        lost = {number: self.alarms.setdefault(number, asyncio.Event()) for number in members}

        async def watch(_attempt: Attempt) -> Alarm:
            waits = {number: asyncio.ensure_future(event.wait()) for number, event in lost.items()}
            try:
                await asyncio.wait(waits.values(), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits.values():
                    wait.cancel()
            number = next(number for number, event in lost.items() if event.is_set())
            lost[number].clear()
            return Alarm(number, ExitCause.DEVICE_LOST, "its device is lost")

        return [watch]

    def lose(self, view: View) -> None:
        """Close a view's connection, as the end of ``_serve`` does."""
        self._connections.discard(cast("Any", view))
        for each in self._seats.values():
            if view in each.watchers:
                each.unwatch(view)
        self._changed.set()

    async def start_process(self, launch: ReplicaLaunch, path: Path) -> ReplicaProcess:  # noqa: ARG002 (as the real one)
        return cast("ReplicaProcess", self.world.start(self, launch.token))


@dataclass
class Gang:
    """A gang and its tasks.

    ``tries`` is (try number, first try) of each replica's newest view, ``fuse`` that of the next supervisor.
    """

    name: str
    installation: Installation
    machine: Machine
    count: int
    request: DeviceRequest
    plan: Plan
    priority: int = 0
    tries: dict[int, tuple[int, int]] = field(default_factory=dict)
    supervisor: Supervisor | None = None
    fuse: int | None = None
    members: dict[tuple[int, int], Member] = field(default_factory=dict)

    @property
    def key(self) -> GangKey:
        return GangKey(self.installation.ledger.ledger_id, self.name, "run", "train")

    @property
    def folder(self) -> Path:
        return RunFolders(self.machine.settings.home, self.name, "run").gang(self.key)

    def parts(self, fence: int, replica: int) -> Mapping[str, int]:
        """Return what a replica uses: what the ledger gave it, whatever is locked."""
        member = self.members[fence, replica]
        return {device.uuid: member.share_percent for device in member.devices}


class World:
    """Everything; ``here`` is where, and ``pid`` as whom, code runs now."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.machines: list[Machine] = []
        self.installations: list[Installation] = []
        self.gangs: list[Gang] = []
        self.processes: list[Process] = []
        self.graveyard: list[Supervisor] = []
        self.tokens: set[str] = set()
        self.holders: dict[tuple[str, int, int], set[int]] = {}
        self.wrongly_swept: list[Process] = []
        self.dies_before = False
        self.here: Machine | None = None
        self.running: Supervisor | None = None
        clock = SimpleNamespace(monotonic=lambda: self.now)
        for module in (seat, drive, quarantine):
            patch.setattr(module, "time", clock)
        for module in (acquire, attempt):
            patch.setattr(module, "kill_tree", self.kill_tree)
            patch.setattr(module, "mark_of", self.mark_of)
        for module in (quarantine, rendezvous):
            patch.setattr(module, "find_tree", self.find_tree)
        patch.setattr(gang, "os", SimpleNamespace(getpid=lambda: self.supervisor_now.pid))
        patch.setattr(acquire, "DeviceLock", self.lock)
        patch.setattr(acquire, "this_host", lambda: self.machine_now.host)
        patch.setattr(locks, "_boot_id", lambda: self.machine_now.boot_id)
        patch.setattr(asyncio, "to_thread", self.to_thread)

    # --- what the kernel says --------------------------------------------------------------------------------------

    @property
    def machine_now(self) -> Machine:
        assert self.here is not None
        return self.here

    @property
    def supervisor_now(self) -> Supervisor:
        assert self.running is not None
        return self.running

    @property
    def boot_seconds(self) -> float:
        return self.now - self.machine_now.booted_at

    @contextlib.contextmanager
    def at(self, machine: Machine) -> Iterator[None]:
        before, self.here = self.here, machine
        try:
            yield
        finally:
            self.here = before

    def to_thread(self, call: Callable[..., Any], *args: Any, **more: Any) -> Awaitable[Any]:
        return self.supervisor_now.block(functools.partial(call, *args, **more))

    def lock(self, folder: Path, uuid: str, share_percent: int) -> DeviceLock:
        """Make a lock that is dropped when the supervisor dies that made it."""
        made = DeviceLock(folder, uuid, share_percent)
        if self.running is not None:
            self.running.locks.append(made)
        return made

    def mark_of(self, pid: int) -> ProcessMark:
        for each in self.supervisors:
            if each.pid == pid and each.gang.machine is self.here:
                return ProcessMark(pid, int(each.started_at * TICKS), pid)
        if any(each.pid == pid and each.is_alive and each.machine is self.here for each in self.processes):
            return ProcessMark(pid, int(self.boot_seconds * TICKS), pid)
        raise ProcessLookupError

    def tree(self, token: str) -> list[Process]:
        return [each for each in self.processes if each.is_alive and each.machine is self.here and each.token == token]

    def find_tree(self, token: str, marks: Sequence[ProcessMark] = ()) -> list[int]:  # noqa: ARG002 (as the real one)
        return [each.pid for each in self.tree(token)]

    def kill_tree(self, token: str, *_: object, **_more: object) -> list[int]:
        for process in self.tree(token):
            if process.supervisor.is_alive and process.supervisor is not self.running:
                self.wrongly_swept.append(process)
            if not process.survives_kill:
                process.end(signal.SIGKILL)
        return self.find_tree(token)

    def new_pid(self, machine: Machine) -> int:
        """Return the smallest free pid: a dead process's number is soon another's."""
        taken = {each.pid for each in self.supervisors if each.gang.machine is machine}
        taken |= {each.pid for each in self.processes if each.is_alive and each.machine is machine}
        return next(number for number in range(FIRST_PID, 10_000) if number not in taken)

    # --- supervisors and processes ---------------------------------------------------------------------------------

    @property
    def supervisors(self) -> list[Supervisor]:
        return [each.supervisor for each in self.gangs if each.supervisor is not None]

    def start(self, supervisor: Supervisor, token: str) -> Process:
        assert token not in self.tokens, f"token {token} is used again"
        self.tokens.add(token)
        part = int(token.split(".")[1]), int(token.split(".")[2])
        users = self.holders.setdefault((supervisor.gang.installation.name, *part), set())
        users.add(id(supervisor))
        assert len(users) == 1, f"fence and replica {part} are used by two supervisors"
        machine = supervisor.gang.machine
        parts, status = supervisor.gang.parts(*part), supervisor.loop.create_future()
        process = Process(machine, token, self.new_pid(machine), parts, status, supervisor)
        self.processes.append(process)
        return process

    def supervise(self, it: Gang) -> Supervisor:
        """Return the gang's supervisor, started where there is none."""
        if it.supervisor is None:
            self.now += 2.0  # longer than within which a pid that was given out again cannot be told from the old one
            with self.at(it.machine):
                it.supervisor = Supervisor(self, it, self.new_pid(it.machine))
            it.supervisor.fuse, it.fuse = it.fuse, None
        return it.supervisor

    def do(self, supervisor: Supervisor, work: Awaitable[Any]) -> None:
        """Let a supervisor do something."""
        supervisor.tasks.append(supervisor.loop.create_task(cast("Any", work)))
        self.settle()

    def settle(self) -> None:
        """Run all supervisors until each waits for time, for a process, or for a view."""
        for supervisor in self.supervisors:
            if supervisor.is_frozen:
                continue
            self.running = supervisor
            with self.at(supervisor.gang.machine):
                supervisor.loop.run_forever()
                for view in [view for view in cast("set[Any]", supervisor._connections) if view.is_done]:
                    supervisor.lose(view)
                supervisor.loop.run_forever()
            self.running = None
            if supervisor.has_died_of_fuse and supervisor.is_alive:
                self.crash(supervisor)
            elif supervisor.is_alive:
                for task in [task for task in supervisor.tasks if task.done()]:
                    task.result()

    def crash(self, supervisor: Supervisor, *, with_replicas: bool = True) -> None:
        """Let a supervisor die: the kernel drops its locks; its main processes die with it, or have got away."""
        self.gone(supervisor)
        for process in self.processes:
            if process.supervisor is supervisor and with_replicas and not process.survives_kill:
                process.end(signal.SIGKILL)

    def gone(self, supervisor: Supervisor) -> None:
        supervisor.is_alive, supervisor.gang.supervisor = False, None
        for lock in supervisor.locks:
            lock.release()
        self.graveyard.append(supervisor)

    def reboot(self, machine: Machine) -> None:
        """Start a host anew: nothing of it lives, all its files are there."""
        for it in self.gangs:
            if it.machine is machine and it.supervisor is not None:
                self.crash(it.supervisor)
        for process in self.processes:
            if process.machine is machine:
                process.is_alive = False
        self.now += 30.0
        machine.boots, machine.booted_at = machine.boots + 1, self.now - 10.0
        for installation in self.installations:
            if installation.epoch_of is machine:
                installation.ledger.close()
                installation.open()

    def close(self) -> None:
        for installation in self.installations:
            installation.ledger.close()
        for supervisor in self.graveyard:
            self.running = supervisor
            for task in asyncio.all_tasks(supervisor.loop):
                task.cancel()
            with self.at(supervisor.gang.machine):
                supervisor.loop.run_forever()
            supervisor.loop.close()
