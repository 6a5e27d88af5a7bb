"""One run of the kill matrix, seen from outside: its processes, its phase, its devices, its checkpoints."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from airflow_tf.core.checkpoint import latest_complete
from airflow_tf.core.identity import GangKey, RunFolders
from airflow_tf.ledger.read import LedgerReader
from tests.airflow.home import AirflowHome
from tests.airflow.matrix.cells import PHASES, RUNNING, WAITING
from tests.airflow.matrix.installation import Blockade
from tests.airflow.running import RunningAirflow
from tests.supervisor.harness import wait_for
from tests.supervisor.processes import supervisor_of, zygote_of

GATES = RUNNING
PHASE_DEADLINE_SECONDS = 240  # of many runs that start at once on two cores
AFTERMATH_SECONDS = 10  # beyond the kill grace, for whatever must be gone
_PAIRS = itertools.count()


@dataclass
class LiveRun:
    """One run of a DAG of the matrix."""

    airflow: RunningAirflow
    run_id: str
    dag_id: str = "matrix"
    grace_seconds: float = 10
    blockade: Blockade | None = None
    victim: int = 0  # task process that Airflow is to end
    pids: dict[int, int] = field(default_factory=dict)  # replica number -> pid when the phase was reached
    complete: dict[int, str] = field(default_factory=dict)  # replica number -> checkpoint that must not be lost

    @property
    def home(self) -> AirflowHome:
        return self.airflow.home

    @property
    def gates(self) -> Path:
        return self.home.folder / "gates" / self.run_id

    @property
    def key(self) -> GangKey:
        return GangKey(self.home.ledger.ledger_id, self.dag_id, self.run_id, "train")

    @property
    def folder(self) -> Path:
        return RunFolders(self.home.settings.home, self.dag_id, self.run_id).gang(self.key)

    # --- driving -----------------------------------------------------------------------------------------------

    def start(self, phase: str, *options: str) -> None:
        """Trigger the run and bring both replicas to ``phase``; ``options`` are files that the program looks for."""
        self.gates.mkdir(parents=True)
        for name in options:
            (self.gates / name).touch()
        for gate in GATES[: max(PHASES.index(phase) - 1, 0)]:
            self.open(gate)
        conf: dict[str, Any] = {"grace": self.grace_seconds}
        if phase == WAITING:
            self.blockade = Blockade(self.home, next(_PAIRS))
            conf |= {"kind": "static", "names": self.blockade.name}
        self.airflow.trigger(self.dag_id, self.run_id, conf)
        if phase == WAITING:
            self.wait(lambda: "devices free" in self.log("reserve"), "a sensor that has looked")
            return
        for replica in (0, 1):
            self.pids[replica] = self.wait_arrival(phase, replica)
            found = latest_complete(self.checkpoints(replica)).prefix
            if found is not None:
                self.complete[replica] = found

    def wait_deferred(self) -> None:
        """Wait until the triggers of what waits run: a mark that comes earlier has nobody to tell."""
        names = ("reserve",) if self.blockade is not None else ("train[0]", "train[1]")
        self.wait(lambda: {self.instances()[name]["state"] for name in names} == {"deferred"}, f"{names} deferred")
        if self.blockade is None:
            self.wait(lambda: all(self.triggers_that_show(replica) for replica in self.pids), "output by the triggers")

    def wait_attached(self) -> None:
        """Wait until the tasks of both replicas look at theirs: the first one that comes starts a whole gang."""
        sign = "attached to the supervisor"
        self.wait(lambda: all(sign in self.log("train", 1, replica) for replica in self.pids), "both views")

    def triggers_that_show(self, replica: int) -> int:
        """Return how many triggerers, one after the other, have shown output of a replica in its task's first log."""
        path = self.log_path("train", 1, replica)
        return sum("saved" in log.read_text(errors="replace") for log in path.parent.glob(f"{path.name}.trigger.*"))

    def open(self, *gates: str) -> None:
        """Let the replicas pass the gates; without arguments let the whole run go on, from waiting too."""
        for gate in gates or GATES:
            (self.gates / f"open-{gate}").touch()
        if self.blockade is not None and not gates:
            self.blockade.open()

    def wait(self, condition: Any, what: str, deadline_seconds: float = PHASE_DEADLINE_SECONDS) -> Any:
        return wait_for(condition, f"{what} in run {self.run_id}", deadline_seconds, 0.2)

    def arrivals(self, phase: str, replica: int) -> list[int]:
        """Pids of the processes of a replica that came to a phase, oldest first."""
        found = sorted(self.gates.glob(f"{phase}-{replica}-*"), key=lambda path: path.stat().st_mtime_ns)
        return [int(path.name.rpartition("-")[2]) for path in found]

    def wait_arrival(self, phase: str, replica: int, *, other_than: int = 0) -> int:
        """Wait until a process of the replica has come to a phase, and return its pid."""

        def find() -> int:
            return next((pid for pid in self.arrivals(phase, replica) if pid != other_than), 0)

        return int(self.wait(find, f"replica {replica} {phase}"))

    # --- looking -----------------------------------------------------------------------------------------------

    def instances(self) -> dict[str, dict[str, Any]]:
        """``reserve``, ``train[0]``, … -> task instance."""
        rows = self.airflow.instances(self.dag_id, self.run_id)
        return {row["task_id"] + (f"[{row['map_index']}]" if row["map_index"] >= 0 else ""): row for row in rows}

    def task_pid(self, name: str) -> int:
        """Pid of the task process of a running instance."""
        pid = self.instances()[name]["pid"]
        assert pid is not None, name
        return int(pid)

    def log(self, task_id: str, try_number: int = 1, map_index: int = -1) -> str:
        """The log of a try as it is on disk, also while it runs."""
        path = self.log_path(task_id, try_number, map_index)
        return path.read_text(errors="replace") if path.exists() else ""

    def log_path(self, task_id: str, try_number: int, map_index: int) -> Path:
        """Where a try writes its log."""
        folder = self.home.folder / "logs" / f"dag_id={self.dag_id}" / f"run_id={self.run_id}" / f"task_id={task_id}"
        folder = folder / f"map_index={map_index}" if map_index >= 0 else folder
        return folder / f"attempt={try_number}.log"

    def checkpoints(self, replica: int, generation: int = 1) -> Path:
        return self.folder / f"replica-{replica}" / f"generation-{generation}" / "checkpoints"

    def supervisor(self) -> int:
        pid = supervisor_of(self.folder)
        assert pid is not None, f"run {self.run_id} has no supervisor"
        return pid

    def zygote(self) -> int:
        pid = zygote_of(self.folder)
        assert pid is not None, f"run {self.run_id} has no zygote"
        return pid

    def processes(self) -> list[str]:
        """Every process of the run's gang, in words."""
        found = []
        for process in self.live_processes():
            with contextlib.suppress(psutil.Error):  # it ended a moment ago
                found.append(f"{process.pid}: {' '.join(process.cmdline())[:120]}")
        return found

    def live_processes(self) -> list[psutil.Process]:
        """Every process of the run's gang: supervisor, zygote, replicas and what these forked."""
        found = []
        for process in psutil.process_iter():
            try:
                folder = process.environ().get("AIRFLOW_TF_RUN_FOLDER", "")
                if Path(folder).is_relative_to(self.folder) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def devices(self) -> list[str]:
        """Devices that the ledger says are held for this run."""
        rows = LedgerReader(self.home.ledger).reservations()
        return [uuid for row in rows if row.gang_key == self.key.key for uuid in row.devices]
