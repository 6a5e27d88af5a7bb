"""The supervisor of one gang on one host: owns the device locks, the zygote and the replicas; outlives its tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import tenacity

from airflow_tf.core.causes import Evidence
from airflow_tf.core.devices import Member
from airflow_tf.core.errors import AirflowTfError, DevicesBusyError, LedgerError, LedgerUnavailableError
from airflow_tf.core.identity import GangKey, View
from airflow_tf.core.launch import GangLaunch, Plan, ReplicaLaunch
from airflow_tf.core.ledger import GangLedger, Orders, Outcome
from airflow_tf.core.policy import LINGER_SECONDS
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import CLEARED_REASON, ExitCause, cause_of_stop
from airflow_tf.core.sweep import MedianRule
from airflow_tf.devices.locks import DeviceLock
from airflow_tf.ledger import open_ledger
from airflow_tf.supervisor import results
from airflow_tf.supervisor.acquire import take_devices
from airflow_tf.supervisor.attempt import ReplicaRun, StopOrder, Watchdog
from airflow_tf.supervisor.drive import Drive
from airflow_tf.supervisor.health import Caretaker, DeviceWatch, gpu_look, holds_gpus, wait_memory_gone
from airflow_tf.supervisor.median import CurveReader, MedianWatch
from airflow_tf.supervisor.processes import ReplicaProcess, Zygote, reap_adopted, spawn
from airflow_tf.supervisor.progress import ProgressWatch
from airflow_tf.supervisor.protocol import MAX_LINE_BYTES, Connection, attach_from_json
from airflow_tf.supervisor.quarantine import Quarantine
from airflow_tf.supervisor.seat import Seat

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
RENEW_SECONDS = 3.0
T = TypeVar("T")


class GangSupervisor:
    """Serve views over a unix socket and start drives; see the package's docstring for the whole picture."""

    def __init__(self, launch: GangLaunch, listener: socket.socket, zygote: Zygote | None) -> None:
        self._launch = launch
        self._key = GangKey(**launch.key)
        self._settings = Settings.from_json(launch.settings)
        self.installation = self._key.installation
        self._listener = listener
        self._folder = Path(launch.folder)
        self._zygote = zygote
        self._zygote_starting = asyncio.Lock()
        self._seats: dict[int, Seat] = {}
        self._processes: dict[int, ReplicaProcess] = {}
        self._early_exits: dict[int, int] = {}
        self._locks: dict[int, list[DeviceLock]] = {}  # by replica number
        self._connections: set[Connection] = set()
        self._ledger_thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._ledger: GangLedger | None = None
        self._changed = asyncio.Event()
        self._ending = False
        self._look = gpu_look(self._settings)
        self._caretaker = Caretaker(self._settings)
        self._quarantine = Quarantine(self._look)
        self._curves: dict[str, CurveReader] = {}  # by metric

    async def run(self) -> None:
        """Serve until nothing runs and nothing more is to be expected."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._terminate)
        if self._zygote is not None:
            await self._connect_zygote(self._zygote)
        server = await asyncio.start_unix_server(self._serve, sock=self._listener, limit=MAX_LINE_BYTES)
        background = [asyncio.create_task(self._renew_for_ever()), asyncio.create_task(self._care_for_ever())]
        await self._until_done()
        server.close()
        for task in background:
            task.cancel()
        if self._zygote is not None:
            await self._zygote.close()
        self._ledger_thread.shutdown()

    async def _until_done(self) -> None:
        """Wait until no replica runs, no view is connected, and no other try is due (or none came for a minute)."""
        idle_since = asyncio.get_running_loop().time()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), TICK_SECONDS)
            self._changed.clear()
            self._reap_orphans()
            for drive in self._drives():
                drive.stop_if_orphaned()
            now = asyncio.get_running_loop().time()
            running = any(seat.is_running for seat in self._seats.values())
            if self._connections or running or (self._quarantine and not self._ending):
                idle_since = now
                continue
            complete = len(self._seats) >= self._launch.count and all(seat.is_final for seat in self._seats.values())
            if complete or self._ending or now - idle_since > LINGER_SECONDS:
                return

    def _terminate(self) -> None:
        """End everything with its grace: the host shuts down, or somebody sent SIGTERM."""
        self._ending = True
        for drive in self._drives():
            drive.stop(StopOrder("its supervisor was asked to end", ExitCause.PREEMPTED))
        self._changed.set()

    def _drives(self) -> set[Drive]:
        """Return the drives that are not done."""
        return {seat.drive for seat in self._seats.values() if seat.drive is not None and not seat.drive.is_done}

    def _reap_orphans(self) -> None:
        """Collect processes that lost their parent inside a replica's tree; this process is their subreaper."""
        reap_adopted(set(self._processes) | ({self._zygote.process.pid} if self._zygote is not None else set()))

    # --- views -------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(writer)
        self._connections.add(connection)
        try:
            async for message in connection.messages(reader):
                await self._handle(connection, message)
        except (ConnectionError, ValueError) as error:
            log.warning("a view's connection broke: %s", error)
        finally:
            self._connections.discard(connection)
            for seat in self._seats.values():
                if connection in seat.watchers:
                    seat.unwatch(connection)
            writer.close()
            self._changed.set()

    async def _handle(self, connection: Connection, message: dict[str, Any]) -> None:
        if message["type"] == "attach":
            await self._attach(connection, message)
        elif message["type"] == "stop":
            order = StopOrder(str(message["reason"]), ExitCause(message.get("cause", ExitCause.STOPPED)))
            self._stop(int(message["replica"]), View(**message["view"]), order)

    def _stop(self, number: int, view: View, order: StopOrder) -> None:
        seat = self._seats.get(number)
        if seat is None or seat.drive is None:
            return
        if not view.is_newer_than(seat.view):
            log.info("replica %s: ignored a stop by an older view (%s): %s", number, view, order.reason)
            return
        seat.drive.stop(order)

    async def _attach(self, connection: Connection, message: dict[str, Any]) -> None:
        request = attach_from_json(message)
        seat = self._seat(request.replica)
        if not request.view.is_newer_than(seat.view):
            connection.notify({"type": "superseded"})
            return
        seat.take(request.view, request.tries_left, request.orphan_grace_seconds)
        if seat.drive is not None and seat.is_running and seat.generation < request.generation:
            await seat.drive.give_way(StopOrder(CLEARED_REASON, ExitCause.MARKED))
        connection.notify({"type": "attached", "supervisor": os.getpid()})
        seat.watch(connection)
        if seat.drive is not None and seat.is_running:
            seat.drive.seen_by(request.view)
            return
        verdict = seat.drive.verdict if seat.drive is not None else None
        known = verdict is not None and verdict.holds_for(request.generation, request.view.try_number)
        if known and seat.outcome is not None:
            connection.notify({"type": "result", "outcome": seat.outcome.to_json()})
            return
        seats = {launch.replica: self._seat(launch.replica) for launch in request.launches}
        Drive(self, seats, request, self._folder).begin(self._changed.set)

    def _seat(self, number: int) -> Seat:
        return self._seats.setdefault(number, Seat(number))

    # --- what drives need --------------------------------------------------------------------------------------

    async def confirm(self, members: Sequence[Member]) -> None:
        """Confirm the members in the ledger, then take their devices' locks; all or none."""
        taken: list[Member] = []
        try:
            for member in members:
                await self._on_ledger(lambda ledger, member=member: ledger.confirm(member, os.getpid()))  # type: ignore[misc]
                taken.append(member)
                self._locks[member.replica] = await asyncio.to_thread(take_devices, member, self._settings)
        except AirflowTfError as error:
            if isinstance(error, DevicesBusyError):
                await self.bar(taken[-1], error.uuids, error.why)
            for member in taken:
                await self.free(member, None)
            raise

    async def free(self, member: Member, stuck: ReplicaRun | None) -> None:
        """Drop the locks and release the member; devices with something stuck on them stay locked."""
        locks = self._locks.pop(member.replica, [])
        if stuck is not None:
            self._quarantine.keep(member, locks, stuck)
            locks = []
        for lock in locks:
            lock.give_back()
        await self._insist(lambda ledger: ledger.release(member))

    def testify(self, run: ReplicaRun, member: Member) -> Evidence:
        """Say what this host knows of a replica's failure."""
        return self._caretaker.testify(run, member, self._running())

    def memory_left(self, member: Member) -> str:
        """Wait until the memory of the member's devices is free; say what is not."""
        return wait_memory_gone(member, self._look)

    def watchdogs(self, plan: Plan, members: Mapping[int, Member]) -> Sequence[Watchdog]:
        """Return what watches an attempt on these devices."""
        found: list[Watchdog] = []
        if plan.progress_timeout_seconds is not None:
            found.append(ProgressWatch(plan.progress_timeout_seconds))
        if plan.early_stop is not None:
            rule = MedianRule(**plan.early_stop)
            reader = self._curves.setdefault(rule.metric, CurveReader(rule.metric, self._folder))
            found.append(MedianWatch(rule, reader))
        if any(holds_gpus(member) for member in members.values()):
            found.append(DeviceWatch(members, self._look))
        return found

    async def bar(self, member: Member, uuids: Sequence[str], why: str) -> None:
        """Offer devices of a member to nobody for a while: a failure may show before its trace in a reading does."""
        await self._insist(lambda ledger: ledger.bar(member, uuids, why))

    async def record_start(self, seat: Seat, member: Member, token: str) -> int:
        """Write the token into the locks, record the attempt, return its number."""
        for lock in self._locks[member.replica]:
            lock.write_token(token)
        return await self._insist(
            lambda ledger: ledger.start_attempt(self._key, seat.number, seat.generation, member, token)
        )

    async def record_end(self, launch: ReplicaLaunch, outcome: Outcome) -> None:
        """Record an outcome, however long the ledger is away."""
        where = (launch.replica, launch.generation, launch.attempt)
        await self._insist(lambda ledger: ledger.end_attempt(self._key, *where, outcome))

    async def get_ready(self, launch: ReplicaLaunch) -> None:
        """Wait until the zygote has imported TensorFlow, where there is one."""
        if self._launch.start_method != "spawn":
            await (await self._ensure_zygote(launch)).wait_ready()

    async def start_process(self, launch: ReplicaLaunch, path: Path) -> ReplicaProcess:
        """Fork from the zygote where its import-time environment is the replica's, else spawn."""
        if self._launch.start_method == "spawn":
            return self._remember(spawn(self._launch.python, launch, path))
        zygote = await self._ensure_zygote(launch)
        if zygote.environment != launch.import_time_environment:
            log.info("replica %s: its import-time environment differs from the zygote's: spawned", launch.replica)
            return self._remember(spawn(self._launch.python, launch, path))
        return self._remember(ReplicaProcess(await zygote.fork(path), is_forked=True))

    def _remember(self, process: ReplicaProcess) -> ReplicaProcess:
        self._processes[process.pid] = process
        process.status.add_done_callback(lambda _: self._processes.pop(process.pid, None))
        if process.pid in self._early_exits:
            process.ended(self._early_exits.pop(process.pid))
        return process

    # --- zygote ------------------------------------------------------------------------------------------------

    async def _ensure_zygote(self, launch: ReplicaLaunch) -> Zygote:
        async with self._zygote_starting:
            if self._zygote is None or self._zygote.is_lost:
                self._zygote = Zygote(self._launch.python, launch.import_time_environment, self._folder)
                await self._connect_zygote(self._zygote)
            return self._zygote

    async def _connect_zygote(self, zygote: Zygote) -> None:
        def on_exit(pid: int, status: int) -> None:
            process = self._processes.get(pid)
            if process is None:
                self._early_exits[pid] = status
            else:
                process.ended(status)

        def on_lost() -> None:
            log.warning("the zygote (pid %s) died; its replicas die with it", zygote.process.pid)
            for process in [process for process in self._processes.values() if process.is_forked]:
                process.ended(None)
            self._changed.set()

        await zygote.connect(on_exit, on_lost)

    # --- ledger ------------------------------------------------------------------------------------------------

    async def _on_ledger(self, call: Callable[[GangLedger], T]) -> T:
        """Run one call in the ledger's own thread."""

        def work() -> T:
            if self._ledger is None:
                self._ledger = open_ledger(self._settings)
            return call(self._ledger)

        return await asyncio.get_running_loop().run_in_executor(self._ledger_thread, work)

    async def _insist(self, call: Callable[[GangLedger], T]) -> T:
        """Run a call until the ledger answers: what happened must be recorded."""
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(LedgerUnavailableError),
            wait=tenacity.wait_random_exponential(max=5),
            before_sleep=self._tell_of_ledger,
        ):
            with attempt:
                return await self._on_ledger(call)
        raise AssertionError("unreachable: retries have no limit")

    def _tell_of_ledger(self, state: tenacity.RetryCallState) -> None:
        """Tell every view once that results wait for the ledger."""
        if state.attempt_number == 1 and state.outcome is not None:
            text = f"waiting for the ledger, to record what happened: {state.outcome.exception()}"
            log.warning("%s", text)
            for seat in self._seats.values():
                seat.notify({"type": "note", "text": text})

    def _running(self) -> dict[int, ReplicaRun]:
        found = {number: seat.run for number, seat in self._seats.items() if seat.run is not None}
        return {number: run for number, run in found.items() if run.process is not None and not run.has_ended}

    async def _care_for_ever(self) -> None:
        """Bound the outputs, note stragglers and OOM kills, and look after quarantined devices, every second."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await asyncio.to_thread(self._caretaker.look, self._running())
                await asyncio.to_thread(self._quarantine.recheck)
            except OSError as error:  # a full disk, for instance
                log.warning("looking after the replicas: %s", error)

    async def _renew_for_ever(self) -> None:
        """Heartbeat: keep unconfirmed siblings reserved, record steps, learn of a cancel."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                orders = await self._on_ledger(lambda ledger: ledger.renew(self._key, os.getpid()))
                self._obey(orders)
                for seat in self._seats.values():
                    await self._record_step(seat)
            except LedgerError as error:
                log.warning("heartbeat not recorded: %s", error)

    def _obey(self, orders: Orders) -> None:
        """Do what the heartbeat's answer asks, and learn which views without a connection are alive."""
        if orders.cancelled_by is not None:
            self._ending = True  # nothing starts again before somebody clears a task
            for drive in self._drives():
                drive.stop(StopOrder("by 'airflow tf cancel'", ExitCause.CANCELLED))
        lost = StopOrder("its reservation was taken away", ExitCause.DEVICE_LOST, at_once=True)
        asked = {number: StopOrder(reason, cause_of_stop(reason)) for number, reason in orders.stops.items()}
        for number, order in (asked | dict.fromkeys(orders.revoked, lost)).items():
            seat = self._seats.get(number)
            if seat is not None and seat.drive is not None:
                seat.drive.stop(order)
        for number, seconds in orders.unseen_seconds.items():
            if number in self._seats:
                self._seats[number].seen_ago(seconds)

    async def _record_step(self, seat: Seat) -> None:
        run = seat.run
        if run is None or run.process is None or run.has_ended:
            return
        step = await asyncio.to_thread(results.last_step, run.folder)
        pid, where = run.process.pid, (seat.number, seat.generation, run.launch.attempt)
        await self._on_ledger(lambda ledger: ledger.update_attempt(self._key, *where, pid=pid, step=step))
