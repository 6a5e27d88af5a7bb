"""A running replica as ledger and disk show it, without a supervisor: its lock is held by the test."""

from __future__ import annotations

import fcntl
import os

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.identity import GangKey, RunFolders, View, make_token
from airflow_tf.core.ledger import Granted, Outcome
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import AttemptState
from airflow_tf.ledger import Ledger
from airflow_tf.supervisor.acquire import acquire, this_host
from airflow_tf.supervisor.protocol import LOCK_NAME
from airflow_tf.supervisor.results import replica_folder
from airflow_tf.triggers.replica import ReplicaTrigger, Watched

VIEW = View("ti-1", 1, 1)
DONE = Outcome(AttemptState.SUCCEEDED, checkpoint="/ck-1")


class Running:
    """A replica as the ledger and the disk show it; its supervisor's lock is held by this process."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self.ledger = ledger
        self.key = GangKey(ledger.ledger_id, "dag", "run", "train")
        self.folder = RunFolders(settings.home, "dag", "run").gang(self.key)
        self.generation = replica_folder(self.folder, 0, 1)
        ledger.open_gang(self.key, 1, str(self.folder))
        ledger.enter(self.key, 0, VIEW)
        granted = acquire(ledger, settings, self.key, DeviceRequest("cpu"), [0])
        assert isinstance(granted, Granted)
        self.member = granted.members[0]
        ledger.confirm(self.member, os.getpid())
        self.begin(1)
        self.lock = os.open(self.folder / LOCK_NAME, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def begin(self, attempt: int) -> None:
        (self.generation / f"attempt-{attempt}").mkdir(parents=True)
        token = make_token(self.key.installation, self.member.fence, 0, attempt)
        assert self.ledger.start_attempt(self.key, 0, 1, self.member, token) == attempt

    def write(self, text: str, attempt: int = 1) -> None:
        with (self.generation / f"attempt-{attempt}" / "output.log").open("a") as file:
            file.write(text)

    def end(self, outcome: Outcome = DONE, attempt: int = 1) -> None:
        self.ledger.end_attempt(self.key, 0, 1, attempt, outcome)

    def kill_supervisor(self) -> None:
        os.close(self.lock)
        self.lock = -1

    def trigger(self, timeout_seconds: float | None = None, host_id: str = "") -> ReplicaTrigger:
        host_id = host_id or this_host().host_id
        watched = Watched(self.key, 0, VIEW, 1, str(self.folder), host_id, "train 0", timeout_seconds)
        return ReplicaTrigger(watched.to_json())

    def stops(self) -> dict[int, str]:
        return self.ledger.renew(self.key, os.getpid()).stops
