"""A gang driven as the operators drive it, without Airflow: scripts in, outcomes and log lines out."""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from airflow_tf.core.checkpoint import BundleWriter, Entry
from airflow_tf.core.devices import DeviceRequest, Member
from airflow_tf.core.identity import GangKey, RunFolders, View
from airflow_tf.core.launch import GangLaunch, Plan, ReplicaLaunch
from airflow_tf.core.ledger import Granted, Outcome
from airflow_tf.core.settings import Settings
from airflow_tf.ledger import open_ledger
from airflow_tf.supervisor.acquire import acquire
from airflow_tf.supervisor.client import GangClient
from airflow_tf.supervisor.protocol import Attach
from airflow_tf.supervisor.tail import Position
from airflow_tf.supervisor.view import Observer, ReplicaView
from tests.supervisor.processes import supervisor_of, zygote_of

DEADLINE_SECONDS = 60.0


def wait_for(
    condition: Callable[[], Any], what: str, deadline_seconds: float = DEADLINE_SECONDS, pause_seconds: float = 0.02
) -> Any:
    """Return the first true value of ``condition``; fail at the deadline."""
    deadline = time.monotonic() + deadline_seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(pause_seconds)
    raise AssertionError(f"not within {deadline_seconds} s: {what}")


@dataclass
class Watch:
    """One view in a thread of its own."""

    view: ReplicaView
    lines: list[str] = field(default_factory=list)
    infos: list[str] = field(default_factory=list)
    shown: list[Position] = field(default_factory=list)
    outcome: Outcome | None = None
    error: BaseException | None = None
    thread: threading.Thread | None = None

    def run(self) -> None:
        try:
            self.outcome = self.view.watch()
        except BaseException as error:  # noqa: BLE001 (handed to the test)
            self.error = error

    def end(self, deadline_seconds: float = DEADLINE_SECONDS) -> Outcome:
        assert self.thread is not None
        self.thread.join(deadline_seconds)
        assert not self.thread.is_alive(), f"no end; infos {self.infos}, output {self.lines}"
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        return self.outcome

    def line(self, prefix: str) -> str:
        """Wait for a line of output that starts so, and return the rest of it."""

        def find() -> str | None:
            if self.error is not None:
                raise self.error
            lines = [line for text in self.lines for line in text.splitlines()]
            return next((line[len(prefix) :] + " " for line in lines if line.startswith(prefix)), None)

        return wait_for(find, f"output {prefix!r}").strip()


class Gang:
    """A gang in a private installation."""

    def __init__(
        self,
        settings: Settings,
        tmp_path: Path,
        *,
        count: int = 1,
        start_method: str = "spawn",
        python: str = sys.executable,
    ) -> None:
        self.settings = settings
        self.ledger = open_ledger(settings)
        self.count = count
        self.key = GangKey(self.ledger.ledger_id, "dag", "run", "train")
        self.folder = RunFolders(settings.home, "dag", "run").gang(self.key)
        self._code = tmp_path / "code"
        self._code.mkdir(exist_ok=True)
        self._launch = GangLaunch(
            key=self.key.to_json(),
            count=count,
            folder=str(self.folder),
            python=python,
            start_method=start_method,
            environment={},
            settings=settings.to_json(),
        )
        self.client = GangClient(self._launch)
        self.ledger.open_gang(self.key, count, str(self.folder))

    def start(self, script: str, *, replica: int = 0, try_number: int = 1, first_try: int = 1, **fields: Any) -> Watch:
        """Attach a view whose replica runs ``script``, or in a gang (``roles``) all of them.

        Keyword arguments are fields of launch, plan, attach or view.
        """
        path = self._code / f"program_{replica}.py"
        path.write_text(script)
        view = View(f"ti-{replica}-{try_number}", try_number, first_try)
        attach_fields = {"tries_left": 0, "orphan_grace_seconds": 30.0}
        attach_fields |= {name: fields.pop(name) for name in list(fields) if name in attach_fields}
        view_fields = {
            name: fields.pop(name)
            for name in list(fields)
            if name in {"position", "timeout_seconds", "leaves", "holds_slot"}
        }
        plan = Plan(**{name: fields.pop(name) for name in list(fields) if name in Plan.__dataclass_fields__})
        numbers = range(self.count) if plan.is_gang else [replica]
        record = self.ledger.enter(self.key, replica, view, together=plan.is_gang)
        members = self._members(numbers)
        defaults: dict[str, Any] = {"require_checkpoint": False, "kill_grace_seconds": 2.0}
        launches = tuple(
            ReplicaLaunch(
                replica=number, count=self.count, entrypoint=str(path), code_folder=str(self._code), **defaults | fields
            )
            for number in numbers
        )
        attach = Attach(
            view=view,
            replica=replica,
            generation=record.generation,
            plan=plan,
            launches=launches,
            members=members,
            **attach_fields,
        )
        lines: list[str] = []
        infos: list[str] = []
        shown: list[Position] = []
        observer = Observer(lines.append, infos.append, shown.append, lambda: "marked failed")
        looking = ReplicaView(self.client, attach, observer, attempts=record.attempts, **view_fields)
        watch = Watch(looking, lines, infos, shown)
        watch.thread = threading.Thread(target=watch.run, daemon=True)
        watch.thread.start()
        return watch

    def _members(self, numbers: Sequence[int]) -> tuple[Member, ...]:
        """Return the devices of replicas, reserved where they have none that a supervisor holds or may take."""
        found = [self.ledger.member(self.key, number) for number in numbers]
        supervised = self.supervisor_pid() is not None
        usable = tuple(member for member in found if member is not None and (supervised or member.state == "reserved"))
        if len(usable) == len(numbers):
            return usable
        granted = acquire(self.ledger, self.settings, self.key, DeviceRequest("cpu"), numbers)
        assert isinstance(granted, Granted), granted
        return granted.members

    def supervisor_pid(self) -> int | None:
        """Pid of the gang's supervisor."""
        return supervisor_of(self.folder)

    def zygote_pid(self) -> int | None:
        """Pid of the gang's zygote."""
        return zygote_of(self.folder)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs (a zombie does not)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(pid: int | None, number: int) -> None:
    """Send a signal to a process that must be there."""
    assert pid is not None
    os.kill(pid, number)


def write_checkpoint(prefix: Path, value: float = 1.0) -> None:
    """Write a complete checkpoint with one float."""
    with BundleWriter(str(prefix)) as writer:
        writer.add(b"weight", Entry(1, (1,), 0, 0, 4, 0), [struct.pack("<f", value)])
        writer.commit()
