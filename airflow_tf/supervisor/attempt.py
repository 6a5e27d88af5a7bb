"""One attempt: the processes of replicas that live and die together, each from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from airflow_tf.core.causes import NO_EVIDENCE, Evidence
from airflow_tf.core.checkpoint.completeness import latest_complete
from airflow_tf.core.errors import AirflowTfError, CheckpointError, SupervisorLostError
from airflow_tf.core.launch import TRAINING_ENDED_FILE, ReplicaLaunch
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.policy import Ending, judge
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.supervisor import results
from airflow_tf.supervisor.cgroup import MemoryGroup, parent_for_limits
from airflow_tf.supervisor.events import collect_events
from airflow_tf.supervisor.processes import ReplicaProcess
from airflow_tf.supervisor.sweep import ProcessMark, kill_tree, mark_of

log = logging.getLogger(__name__)

KILL_DEADLINE_SECONDS = 30.0
"""A process that outlives SIGKILL for so long hangs in the kernel: its device is quarantined."""


class Starter(Protocol):
    """What starts processes."""

    async def get_ready(self, launch: ReplicaLaunch) -> None:
        """Prepare to start the replica; may take long, and may be cancelled.

        :raises AirflowTfError: if it cannot be started.
        """
        ...

    async def start_process(self, launch: ReplicaLaunch, path: Path) -> ReplicaProcess:
        """Fork or spawn the replica."""
        ...


@dataclass(frozen=True, slots=True)
class StopOrder:
    """Why an attempt was asked to end; ``at_once`` where not even the time of a last checkpoint is left."""

    reason: str
    cause: ExitCause = ExitCause.STOPPED
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Alarm:
    """Why an attempt must end although its processes live, as a watchdog found; ``replica`` is at fault.

    ``is_success`` where nobody is: there is nothing to be gained from going on.
    """

    replica: int
    cause: ExitCause
    message: str
    is_success: bool = False

    @property
    def outcome(self) -> Outcome:
        """What the replica is told, but for what it leaves behind."""
        return Outcome(AttemptState.SUCCEEDED if self.is_success else AttemptState.FAILED, self.cause, self.message)


@dataclass(frozen=True, slots=True)
class Attempt:
    """The runs of one attempt by replica number; ``note`` tells all their views a line."""

    runs: Mapping[int, ReplicaRun]
    note: Callable[[str], None]


Watchdog = Callable[[Attempt], Awaitable[Alarm]]
"""Watches an attempt while it runs; returns only when it must end, and is cancelled when it has ended."""


class ReplicaRun:
    """One process of one replica: start, end, judgement.

    ``failure`` is why it could not be started or resumed; ``survivors`` are pids that outlived SIGKILL; ``leftover``
    is what of its devices is still in use although nothing of it lives.

    :param testify: what the host knows of a failure of it; may block.
    """

    def __init__(self, launch: ReplicaLaunch, testify: Callable[[ReplicaRun], Evidence]) -> None:
        self.launch = launch
        self._testify = testify
        self.folder = Path(launch.folder)
        self.process: ReplicaProcess | None = None
        self.marks: list[ProcessMark] = []
        self.failure: AirflowTfError | None = None
        self.survivors: list[int] = []
        self.leftover = ""
        self.group: MemoryGroup | None = None
        self._was_signalled = False

    @property
    def keeps_device(self) -> bool:
        """Tell whether its devices cannot be given to others, whatever the reservation says."""
        return bool(self.survivors or self.leftover)

    @property
    def has_ended(self) -> bool:
        """Tell whether nothing is to be waited for: its process has ended, or was never started."""
        return self.process is None or self.process.status.done()

    @property
    def died_at(self) -> float:
        """When it died, on the event loop's clock; what never ran died first."""
        return float("-inf") if self.process is None else self.process.died_at or float("inf")

    def attempt_message(self) -> dict[str, Any]:
        """Tell a view where the output is, and how to find the processes should this supervisor die."""
        return {
            "type": "attempt",
            "attempt": self.launch.attempt,
            "folder": self.launch.folder,
            "pid": self.process.pid if self.process else None,
            "token": self.launch.token,
        }

    @property
    def has_begun(self) -> bool:
        """Tell whether it was started, or tried to."""
        return self.process is not None or self.failure is not None

    async def start(self, starter: Starter, stopping: asyncio.Event, timeout_seconds: float) -> None:
        """Start the process, unless a stop comes first; what prevents it is kept as ``failure``."""
        stopped = asyncio.ensure_future(stopping.wait())
        ready = asyncio.ensure_future(starter.get_ready(self.launch))
        waited: set[asyncio.Future[Any]] = {ready, stopped}
        await asyncio.wait(waited, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        try:
            if stopping.is_set():
                ready.cancel()
                return
            if not ready.done():
                ready.cancel()
                raise SupervisorLostError("the training interpreter is not ready", f"waited {timeout_seconds:.0f} s")
            ready.result()
            await asyncio.to_thread(self._limit)
            self.launch.write(self.folder / "launch.json")
            self.process = await starter.start_process(self.launch, self.folder / "launch.json")
        except AirflowTfError as error:
            self.failure = error
            return
        try:
            self.marks.append(mark_of(self.process.pid))
        except ProcessLookupError:
            log.info("replica %s ended at once", self.launch.replica)

    def training_ended(self) -> None:
        """Tell an evaluator that no further checkpoint will come."""
        (self.folder / TRAINING_ENDED_FILE).touch()

    def _limit(self) -> None:
        """Make the cgroup that the process will enter, where its memory is limited.

        :raises DeclarationError: if that is not possible here.
        """
        if self.launch.memory_limit_bytes is not None:
            name = f"airflow_tf-{self.launch.token}"
            self.group = MemoryGroup.create(parent_for_limits(), name, self.launch.memory_limit_bytes)
            self.launch = self.launch.for_attempt(cgroup=str(self.group.path))

    async def end(self, grace_seconds: float, hurry: asyncio.Event) -> None:
        """End the whole tree: SIGTERM to its main process, grace (until ``hurry``), SIGKILL to whatever is left."""
        process = self.process
        if process is not None and not process.status.done():
            self._was_signalled = True
            process.send(signal.SIGTERM)
            hurried = asyncio.ensure_future(hurry.wait())
            ends: set[asyncio.Future[Any]] = {process.status, hurried}
            await asyncio.wait(ends, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
            if not process.status.done():
                log.info("replica %s went on after SIGTERM for up to %.0f s", self.launch.replica, grace_seconds)
        if self.group is not None:
            self.group.kill()
        self.survivors = await asyncio.to_thread(
            kill_tree, self.launch.token, self.marks, deadline_seconds=KILL_DEADLINE_SECONDS
        )
        if process is not None:
            await asyncio.wait({process.status}, timeout=0 if self.survivors else KILL_DEADLINE_SECONDS)
            process.close()
        if self.group is not None:
            self.group.remove()

    def judge(self, stop: StopOrder | None) -> Outcome:
        """Say how this replica ended, looked at alone; reads its folder.

        A program that saves on SIGTERM and exits with 0 has been stopped; one that ended before the signal has not.
        """
        if self.process is not None and not self._was_signalled:
            stop = None
        if self.survivors:
            return Outcome(
                AttemptState.LOST,
                ExitCause.INFRASTRUCTURE,
                f"processes {self.survivors} survived SIGKILL for {KILL_DEADLINE_SECONDS:.0f} s; the devices stay "
                "locked. Look at them with 'ps -o pid,stat,wchan'; a reboot of the host may be needed",
            )
        if self.failure is not None and stop is None:
            lost = isinstance(self.failure, SupervisorLostError)
            cause = ExitCause.INFRASTRUCTURE if lost else ExitCause.CONFIG_REFUSED
            return Outcome(AttemptState.LOST if lost else AttemptState.FAILED, cause, str(self.failure))
        collect_events(self.folder, Path(self.launch.checkpoint_folder))
        status = self.process.status.result() if self.process is not None and self.process.status.done() else None
        outcome = judge(
            Ending(
                wait_status=status,
                stop_reason=stop.reason if stop is not None else None,
                stop_cause=stop.cause if stop is not None else ExitCause.STOPPED,
                checkpoint=latest_complete(Path(self.launch.checkpoint_folder)).prefix,
                require_checkpoint=self.launch.require_checkpoint,
                output=results.output_end(self.folder),
                refusal=results.read_refusal(self.folder),
                steps=results.read_metrics(self.folder),
                evidence=self._testify(self) if status and stop is None else NO_EVIDENCE,
            )
        )
        return self._with_earlier(outcome) if outcome.state is AttemptState.SUCCEEDED else outcome

    def _with_earlier(self, outcome: Outcome) -> Outcome:
        """Lay its metrics over those of the attempts that it went on from: it may have had nothing left to do.

        Of a success only: whether an attempt that failed had made a step is told by what it has reported itself.
        """
        earlier = [] if self.launch.fresh else results.earlier_attempts(self.folder)
        return replace(outcome, metrics=results.read_metrics(self.folder, earlier=earlier)) if earlier else outcome

    def with_leftover(self, outcome: Outcome) -> Outcome:
        """Say what it left on its devices; a success stays one, for its result is durable."""
        if not self.leftover or outcome.state is AttemptState.SUCCEEDED:
            return outcome
        text = f"{outcome.message}\nIts devices stay locked: its processes are gone, but {self.leftover}"
        return replace(outcome, message=text)


def resume_point(launch: ReplicaLaunch) -> str | None:
    """Return the last complete checkpoint of this generation; the initial one, if any, where none was ever finished.

    The one that was saved last counts: another host may have trained it meanwhile, and this one has its copy.

    :raises CheckpointError: if there were checkpoints and none can be read: to start from scratch would hide the loss,
        unless the launch allows it.
    """
    if launch.fresh:
        return launch.initial_checkpoint
    found = latest_complete(Path(launch.checkpoint_folder))
    for skipped in found.skipped:
        log.warning("passed over %s: %s", skipped.path, skipped.reason)
    if launch.copied_checkpoint and launch.copied_at_ns > _saved_ns(found.prefix):
        return launch.copied_checkpoint
    if found.prefix is None and found.skipped and not launch.allow_from_scratch:
        folder = launch.checkpoint_folder
        raise CheckpointError(
            f"the checkpoints in {folder} cannot be read, and training does not start from scratch silently",
            "; ".join(f"{skipped.path}: {skipped.reason}" for skipped in found.skipped),
            "Repair or remove them, set allow_from_scratch, or clear the task: that opens a new, empty generation.",
        )
    return found.prefix or launch.initial_checkpoint


def _saved_ns(prefix: str | None) -> int:
    return Path(f"{prefix}.index").stat().st_mtime_ns if prefix else 0
