"""A seat: one replica number of a gang inside its supervisor, and the views that look at it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from airflow_tf.core.identity import View
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.policy import is_final
from airflow_tf.supervisor.attempt import ReplicaRun

if TYPE_CHECKING:
    from airflow_tf.supervisor.drive import Drive

WAITING = {"type": "waiting"}


class Watcher(Protocol):
    """A view's connection."""

    def notify(self, message: dict[str, Any]) -> None:
        """Send one message; a broken connection is noticed elsewhere."""
        ...


class Seat:
    """One replica number. Views come and go; at most one drive runs attempts of it at a time.

    ``outcome`` is the replica's own in the last drive that ended, ``run`` its process in the present attempt, or the
    last one.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.view: View | None = None
        self.generation = 0
        self.tries_left = 0
        self.orphan_grace_seconds = 0.0
        self.tokens = 0
        self.outcome: Outcome | None = None
        self.run: ReplicaRun | None = None
        self.told_waiting: ReplicaRun | None = None
        self.drive: Drive | None = None
        self.watchers: set[Watcher] = set()
        self.seen_at = time.monotonic()

    @property
    def is_running(self) -> bool:
        """Tell whether an attempt runs or is being started or ended."""
        return self.drive is not None and not self.drive.is_done

    @property
    def is_final(self) -> bool:
        """Tell whether no further try of this replica is to be expected."""
        verdict = self.drive.verdict if self.drive is not None else None
        root = verdict.root if verdict is not None else None
        return not self.is_running and is_final(root, tries_left=self.tries_left)

    def take(self, view: View, tries_left: int, orphan_grace_seconds: float) -> None:
        """Let a new view own the replica; those before it are told that they are done."""
        self.notify({"type": "superseded"})
        self.watchers.clear()
        self.view, self.tries_left, self.orphan_grace_seconds = view, tries_left, orphan_grace_seconds
        self.seen_at = time.monotonic()

    def seen_ago(self, seconds: float) -> None:
        """Take note of a sign that a view gave in the ledger."""
        self.seen_at = max(self.seen_at, time.monotonic() - seconds)

    def watch(self, watcher: Watcher) -> None:
        """Add a view's connection and tell it where things are."""
        self.watchers.add(watcher)
        if self.run is not None and self.is_running:
            watcher.notify(self.run.attempt_message())
            if self.told_waiting is self.run:
                watcher.notify(WAITING)

    def tell_waiting(self) -> None:
        """Tell the views, once, that the replica has ended while its gang goes on."""
        if self.told_waiting is not self.run:
            self.told_waiting = self.run
            self.notify(WAITING)

    def unwatch(self, watcher: Watcher) -> None:
        """Forget a connection; after the last one the orphan grace runs."""
        self.watchers.discard(watcher)
        self.seen_at = time.monotonic()

    def notify(self, message: dict[str, Any]) -> None:
        """Tell all views."""
        for watcher in list(self.watchers):
            watcher.notify(message)
