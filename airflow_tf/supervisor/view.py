"""A view: what one try of a train task does while its replica runs. Knows no Airflow; waits and logs by callbacks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_tf.core.errors import (
    AirflowTfError,
    ReplicaTimeoutError,
    SupervisorLostError,
    ViewDetachedError,
    from_payload,
)
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import MARKED_REASON, ExitCause
from airflow_tf.supervisor.client import Channel, GangClient, stop_replica
from airflow_tf.supervisor.protocol import LOG_NAME, Attach
from airflow_tf.supervisor.results import replica_folder
from airflow_tf.supervisor.sweep import ProcessMark, kill_tree, mark_of
from airflow_tf.supervisor.tail import OutputTail, Position

POLL_SECONDS = 0.2
RECORD_SECONDS = 2.0
"""How often at most a view says how far it has shown the output: a killed one repeats no more than that."""

SIBLINGS_SECONDS = 15.0
"""How long a view waits for the siblings of its replica: most end together."""

_SWEEP_SECONDS = 10.0
_NEXT_TRY = "The next try attaches again."
_ATTACH_TRIES = 10


@dataclass(slots=True)
class Observer:
    """What a view tells its task: lines of the replica's output, up to where it was shown, and what happens to it.

    ``mark`` is asked after the task was killed: what its user did with it, in words, empty if it was not the user.
    """

    output: Callable[[str], None]
    info: Callable[[str], None]
    shown: Callable[[Position], None]
    mark: Callable[[], str]


@dataclass(slots=True)
class ReplicaView:
    """Look at one replica until it has a result.

    :param attempts: how many attempts there were before, in this generation.
    :param position: up to where earlier views have shown their output.
    :param timeout_seconds: how long it may still be watched; then it is stopped.
    :param leaves: leave as soon as the program runs, for a trigger to go on watching.
    :param holds_slot: leave when the replica has ended but its gang goes on: nobody waits for siblings in a slot.
    :param killed: set from a signal handler: it is to be asked what became of the task, and to stop or to detach.
    :param detached: set from a signal handler when the replica must go on without this task.

    ``mark`` is what its user did with the task, once that is known.
    """

    client: GangClient
    attach: Attach
    observer: Observer
    attempts: int = 0
    position: Position = (0, 0)
    timeout_seconds: float | None = None
    leaves: bool = False
    holds_slot: bool = False
    killed: bool = False
    detached: bool = False
    mark: str = ""
    _channel: Channel | None = None
    _tail: OutputTail = field(init=False)
    _has_begun: bool = False
    _waiting_since: float | None = None
    _recorded_seconds: float = 0.0
    _token: str = ""
    _marks: list[ProcessMark] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin to follow the output where the view before has ended."""
        folder = replica_folder(self.client.folder, self.attach.replica, self.attach.generation)
        self._tail = OutputTail(folder, self.observer.output, self.position)

    def watch(self) -> Outcome | None:
        """Attach (starting what is missing), follow the output, return the durable outcome; None if it left before.

        Leaving by anything that is not our own error (a timeout, ^C) stops the replica and waits until it is gone.

        :raises SupervisorLostError: if the supervisor died; what it left of the replica has been killed.
        :raises ViewDetachedError: if this view was detached, or a newer try took over.
        :raises ReplicaTimeoutError: if it was watched for too long; it has been stopped.
        :raises AirflowTfError: if the supervisor refuses (devices taken, reservation lost).
        """
        try:
            return self._watch()
        except SupervisorLostError:
            if self._token:
                kill_tree(self._token, self._marks, deadline_seconds=_SWEEP_SECONDS)
            raise
        except AirflowTfError:
            raise
        except BaseException as error:
            how = "^C" if isinstance(error, KeyboardInterrupt) else type(error).__name__
            self._stop_and_wait(f"its task ended by {how}")
            raise
        finally:
            self._forward(record=True)
            if self._channel is not None:
                self._channel.close()

    def stop(self, reason: str, cause: ExitCause = ExitCause.STOPPED) -> None:
        """Ask for a stop; safe in a signal handler."""
        stop_replica(self.client.folder, self.attach.replica, self.attach.view, reason, cause)

    def _stop_and_wait(self, reason: str) -> None:
        self.observer.info(f"stopping the replica: {reason}")
        self.stop(reason)
        deadline = time.monotonic() + self.attach.kill_grace_seconds + _SWEEP_SECONDS
        channel = self._channel
        while channel is not None and channel.is_open and time.monotonic() < deadline:
            if any(message["type"] in {"result", "refused"} for message in channel.poll(POLL_SECONDS)):
                return

    def _watch(self) -> Outcome | None:
        channel = self._connect()
        until = None if self.timeout_seconds is None else time.monotonic() + self.timeout_seconds
        while True:
            for message in channel.poll(POLL_SECONDS):
                outcome = self._handle(message)
                if outcome is not None:
                    self._forward(ended=True)
                    return outcome
            self._forward()
            if self._may_leave():
                return None
            if until is not None and time.monotonic() >= until:
                self._stop_and_wait("its task's execution_timeout is over")
                self._forward(ended=True)
                raise ReplicaTimeoutError(f"replica {self.attach.replica} was stopped", "its time is over")
            if self.killed:
                self.killed = False
                self.mark = self.observer.mark()
                if not self.mark:
                    raise ViewDetachedError("detached: no user has ended this task", todo=_NEXT_TRY)
                self.stop(f"{MARKED_REASON}{self.mark}", ExitCause.MARKED)
            if self.detached:
                raise ViewDetachedError("detached: Airflow's API does not answer", todo=_NEXT_TRY)
            if not channel.is_open:
                raise SupervisorLostError(
                    "the gang's supervisor died",
                    f"its log is {self.client.folder / LOG_NAME}",
                    "The replica has been killed; the next try starts it again from its last checkpoint.",
                )

    def _may_leave(self) -> bool:
        """Tell whether somebody else goes on watching, or nothing is to be seen for a while."""
        if self.leaves and self._has_begun:
            return True
        since = self._waiting_since
        return self.holds_slot and since is not None and time.monotonic() > since + SIBLINGS_SECONDS

    def _connect(self) -> Channel:
        """Attach; a supervisor that was just ending closes the connection unanswered: try again."""
        for _ in range(_ATTACH_TRIES):
            self._channel = channel = self.client.connect()
            channel.send(self.attach.to_json())
            while channel.is_open:
                if channel.wait(POLL_SECONDS):
                    return channel
        raise SupervisorLostError(
            "the gang's supervisor does not answer", f"its log is {self.client.folder / LOG_NAME}"
        )

    def _handle(self, message: dict[str, Any]) -> Outcome | None:
        kind = message["type"]
        if kind == "attached":
            self.observer.info(f"attached to the supervisor (pid {message['supervisor']})")
        elif kind == "attempt":
            self._begin_attempt(message)
        elif kind == "waiting":
            self._waiting_since = time.monotonic()
            self.observer.info("the replica has ended; its gang goes on")
        elif kind == "restarting":
            self.observer.info(f"restart {message['restart']}: {message['outcome']['message']}")
        elif kind == "note":
            self.observer.info(message["text"])
        elif kind == "superseded":
            raise ViewDetachedError("a newer try of this task looks after the replica")
        elif kind == "refused":
            raise from_payload(message["error"])
        elif kind == "result":
            return Outcome.from_json(message["outcome"])
        return None

    def _begin_attempt(self, message: dict[str, Any]) -> None:
        """Follow the output of an attempt; remember how to find its processes should the supervisor die."""
        self._forward()
        folder = Path(message["folder"])
        if folder.parent != self._tail.folder:  # a sibling was cleared: the gang began a new generation
            self._forward(ended=True, record=True)
            self._tail = OutputTail(folder.parent, self.observer.output)
        self.observer.info(f"attempt {message['attempt']}, pid {message['pid']}, folder {folder}")
        self._token, self._marks = message["token"], []
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            self._marks.append(mark_of(message["pid"]))
        self.attempts, self._has_begun, self._waiting_since = message["attempt"], True, None

    def _forward(self, *, ended: bool = False, record: bool = False) -> None:
        """Show what is new, and say up to where: from time to time, and when asked."""
        self._tail.forward(self.attempts, final=ended)
        now = time.monotonic()
        if self._tail.position != self.position and (record or now > self._recorded_seconds + RECORD_SECONDS):
            self.position, self._recorded_seconds = self._tail.position, now
            self.observer.shown(self.position)
