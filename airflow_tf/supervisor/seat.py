"""A seat: one replica number of a gang inside its supervisor, and how its attempts are run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from airflow_tf.core.checkpoint.completeness import latest_complete
from airflow_tf.core.devices import Member
from airflow_tf.core.errors import AirflowTfError, CheckpointError, SupervisorLostError, to_payload
from airflow_tf.core.identity import View, digest, make_token
from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.policy import Ending, is_final, judge, may_restart
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.supervisor import results
from airflow_tf.supervisor.processes import ReplicaProcess
from airflow_tf.supervisor.sweep import ProcessMark, kill_tree, mark_of

log = logging.getLogger(__name__)

KILL_DEADLINE_SECONDS = 30.0
"""A process that outlives SIGKILL for so long hangs in the kernel: its device is quarantined."""


class Watcher(Protocol):
    """A view's connection."""

    def notify(self, message: dict[str, Any]) -> None:
        """Send one message; a broken connection is noticed elsewhere."""
        ...


class Host(Protocol):
    """What a seat needs of its supervisor."""

    installation: str

    async def confirm(self, member: Member) -> None:
        """Confirm the member in the ledger and take its devices' locks; sweep what their last holders left."""
        ...

    async def free(self, member: Member, *, quarantined: bool) -> None:
        """Drop the locks (unless quarantined) and release the member in the ledger."""
        ...

    async def record_start(self, seat: Seat, member: Member, token: str) -> int:
        """Record a new attempt and return its number."""
        ...

    async def record_end(self, seat: Seat, outcome: Outcome) -> None:
        """Record an outcome, however long the ledger is away."""
        ...

    async def start_process(self, launch: ReplicaLaunch, path: Path) -> ReplicaProcess:
        """Fork or spawn the replica."""
        ...


class Seat:
    """One replica number. At most one drive (task) runs attempts at a time; views come and go."""

    def __init__(self, host: Host, number: int, folder: Path) -> None:
        self.number = number
        self.view: View | None = None
        self.generation = 0
        self.attempt = 0
        self.tries_left = 0
        self.orphan_grace_seconds = 0.0
        self.outcome: Outcome | None = None
        self.process: ReplicaProcess | None = None
        self.watchers: set[Watcher] = set()
        self.drive: asyncio.Task[None] | None = None
        self.attempt_folder: Path | None = None
        self._host = host
        self._gang_folder = folder
        self._tokens = 0
        self._token = ""
        self._stop_reason: str | None = None
        self._stop_cause = ExitCause.STOPPED
        self._stopping = asyncio.Event()
        self._orphan_timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        """Tell whether an attempt runs or is being started or ended."""
        return self.drive is not None and not self.drive.done()

    @property
    def is_final(self) -> bool:
        """Tell whether no further try of this replica is to be expected."""
        return not self.is_running and is_final(self.outcome, tries_left=self.tries_left)

    def begin(self, launch: ReplicaLaunch, member: Member, generation: int, on_end: Callable[[], None]) -> None:
        """Start driving attempts of ``generation``."""
        self.generation, self.outcome = generation, None
        self._stop_reason = None
        self._stopping.clear()
        self.drive = asyncio.create_task(self._drive(launch, member))
        self.drive.add_done_callback(lambda _: on_end())

    def stop(self, reason: str, cause: ExitCause = ExitCause.STOPPED) -> None:
        """Ask the running attempt to end: SIGTERM, grace, SIGKILL."""
        if self._stop_reason is None:
            log.info("replica %s: stop asked: %s", self.number, reason)
            self._stop_reason, self._stop_cause = reason, cause
            self._stopping.set()

    def watch(self, watcher: Watcher) -> None:
        """Add a view's connection and tell it where things are."""
        self.watchers.add(watcher)
        if self._orphan_timer is not None:
            self._orphan_timer.cancel()
            self._orphan_timer = None
        if self.attempt_folder is not None and self.is_running:
            watcher.notify(self._attempt_message())

    def unwatch(self, watcher: Watcher) -> None:
        """Forget a connection; the last one starts the orphan grace."""
        self.watchers.discard(watcher)
        if not self.watchers and self.is_running:
            grace = self.orphan_grace_seconds
            log.info("replica %s: no view; it may run %.0f s without one", self.number, grace)
            self._orphan_timer = asyncio.get_running_loop().call_later(
                grace, self.stop, f"no task looked after it for {grace:.0f} s"
            )

    def notify(self, message: dict[str, Any]) -> None:
        """Tell all views."""
        for watcher in list(self.watchers):
            watcher.notify(message)

    def _attempt_message(self) -> dict[str, Any]:
        pid = self.process.pid if self.process else None
        return {
            "type": "attempt",
            "attempt": self.attempt,
            "folder": str(self.attempt_folder),
            "pid": pid,
            "token": self._token,
        }

    async def _drive(self, launch: ReplicaLaunch, member: Member) -> None:
        """Run attempts until one succeeds, the budget is used up, or somebody stops it; tell the views how it ended.

        A failure of our own is told first and cleaned up after: what caused it, a full disk for instance, may keep
        the ledger away as well, and no view must wait for that.
        """
        try:
            await self._host.confirm(member)
        except AirflowTfError as error:
            self.notify({"type": "refused", "error": to_payload(error)})
            return
        survivors: list[int] = []
        try:
            self.outcome, survivors = await self._attempts(launch, member)
        except Exception as error:  # whatever it is, a view must not wait for ever
            log.exception("replica %s", self.number)
            lost = SupervisorLostError(
                f"replica {self.number} could not be run",
                f"{type(error).__name__}: {error}",
                f"Look at the disk of {self._gang_folder} and at the supervisor's log in it.",
            )
            self.notify({"type": "refused", "error": to_payload(lost)})
            survivors = await asyncio.to_thread(kill_tree, self._token, deadline_seconds=KILL_DEADLINE_SECONDS)
            await self._host.free(member, quarantined=bool(survivors))
        else:
            await self._host.free(member, quarantined=bool(survivors))
            self.notify({"type": "result", "outcome": self.outcome.to_json()})

    async def _attempts(self, launch: ReplicaLaunch, member: Member) -> tuple[Outcome, list[int]]:
        """Run attempts within the budget; return the last outcome and the pids that survived SIGKILL."""
        restarts_used = 0
        while True:
            outcome, survivors = await self._attempt(launch, member)
            again = may_restart(outcome, restarts_used=restarts_used, restarts=launch.restarts)
            if survivors or self._stop_reason or not again:
                return outcome, survivors
            restarts_used += 1
            self.notify({"type": "restarting", "outcome": outcome.to_json(), "restart": restarts_used})

    async def _attempt(self, launch: ReplicaLaunch, member: Member) -> tuple[Outcome, list[int]]:
        """Run one attempt to its durable end; return its outcome and the pids that survived SIGKILL."""
        self._tokens += 1
        self._token = make_token(self._host.installation, member.fence, self.number, self._tokens)
        self.attempt = await self._host.record_start(self, member, self._token)
        launch = self._complete(launch, member)
        folder = Path(launch.folder)
        self.attempt_folder = folder
        marks: list[ProcessMark] = []
        try:
            launch = launch.for_attempt(resume_from=await asyncio.to_thread(resume_point, launch.checkpoint_folder))
            launch.write(folder / "launch.json")
            status = await self._run_process(launch, folder, marks)
            failure = None
        except AirflowTfError as error:
            status, failure = None, error
        survivors = await asyncio.to_thread(kill_tree, self._token, marks, deadline_seconds=KILL_DEADLINE_SECONDS)
        outcome = await asyncio.to_thread(self._judge, launch, status, failure, survivors)
        await asyncio.to_thread(results.write_outcome, folder, outcome)
        await self._host.record_end(self, outcome)
        log.info("replica %s attempt %s: %s %s", self.number, self.attempt, outcome.state, outcome.message)
        return outcome, survivors

    def _complete(self, launch: ReplicaLaunch, member: Member) -> ReplicaLaunch:
        """Fill in what only the supervisor knows, and make the folders."""
        home = results.replica_folder(self._gang_folder, self.number, self.generation)
        folder, checkpoints = home / f"attempt-{self.attempt}", home / "checkpoints"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        checkpoints.mkdir(mode=0o700, exist_ok=True)
        memories = [device.memory_bytes for device in member.devices]
        known = [memory for memory in memories if memory is not None]
        return launch.for_attempt(
            generation=self.generation,
            attempt=self.attempt,
            token=self._token,
            folder=str(folder),
            checkpoint_folder=str(checkpoints),
            visible_devices=",".join(device.visible for device in member.devices) or "-1",
            memory_bytes=min(known) if known and len(known) == len(memories) else None,
            seed=int(digest(self._gang_folder, self.number, self.generation), 16),
        )

    async def _run_process(self, launch: ReplicaLaunch, folder: Path, marks: list[ProcessMark]) -> int | None:
        """Start the process and wait for its end, or end it when asked; return its wait status."""
        self.process = await self._host.start_process(launch, folder / "launch.json")
        try:
            try:
                marks.append(mark_of(self.process.pid))
            except ProcessLookupError:
                log.info("replica %s ended at once", self.number)
            self.notify(self._attempt_message())
            stopping = asyncio.create_task(self._stopping.wait())
            ends: set[asyncio.Future[Any]] = {self.process.status, stopping}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not self.process.status.done():
                self.process.terminate()
                await asyncio.wait({self.process.status}, timeout=launch.kill_grace_seconds)
            if not self.process.status.done():
                log.info("replica %s ignored SIGTERM for %.0f s", self.number, launch.kill_grace_seconds)
                await asyncio.to_thread(kill_tree, self._token, marks, deadline_seconds=KILL_DEADLINE_SECONDS)
                await asyncio.wait({self.process.status}, timeout=KILL_DEADLINE_SECONDS)
            return self.process.status.result() if self.process.status.done() else None
        finally:
            self.process.close()
            self.process = None

    def _judge(
        self, launch: ReplicaLaunch, status: int | None, failure: AirflowTfError | None, survivors: list[int]
    ) -> Outcome:
        if survivors:
            return Outcome(
                AttemptState.LOST,
                ExitCause.INFRASTRUCTURE,
                f"processes {survivors} survived SIGKILL for {KILL_DEADLINE_SECONDS:.0f} s; the devices stay locked. "
                "Look at them with 'ps -o pid,stat,wchan'; a reboot of the host may be needed",
            )
        if failure is not None and self._stop_reason is None:
            lost = isinstance(failure, SupervisorLostError)
            cause = ExitCause.INFRASTRUCTURE if lost else ExitCause.CONFIG_REFUSED
            return Outcome(AttemptState.LOST if lost else AttemptState.FAILED, cause, str(failure))
        folder = Path(launch.folder)
        return judge(
            Ending(
                wait_status=status,
                stop_reason=self._stop_reason,
                stop_cause=self._stop_cause,
                checkpoint=latest_complete(Path(launch.checkpoint_folder)).prefix,
                require_checkpoint=launch.require_checkpoint,
                log_tail=results.log_tail(folder),
                refusal=results.read_refusal(folder),
                steps=results.read_metrics(folder),
            )
        )


def resume_point(checkpoint_folder: str) -> str | None:
    """Return the last complete checkpoint of this generation, None where none was ever finished.

    :raises CheckpointError: if there were checkpoints and none can be read: to start from scratch would hide the loss.
    """
    found = latest_complete(Path(checkpoint_folder))
    for skipped in found.skipped:
        log.warning("passed over %s: %s", skipped.path, skipped.reason)
    if found.prefix is None and found.skipped:
        raise CheckpointError(
            f"the checkpoints in {checkpoint_folder} cannot be read, and training does not start from scratch silently",
            "; ".join(f"{skipped.path}: {skipped.reason}" for skipped in found.skipped),
            "Repair or remove them, or clear the task: that opens a new, empty generation.",
        )
    return found.prefix
