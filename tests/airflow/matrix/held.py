"""A gang of one replica, held in a phase like the runs under Airflow, but driven without Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_tf.core.checkpoint import latest_complete
from tests.airflow.matrix.cells import RUNNING
from tests.supervisor.harness import Gang, Watch, wait_for

PROGRAM = Path(__file__).with_name("program.py")


class HeldGang:
    """Runs the matrix's program; every try is a view of its own."""

    def __init__(self, gang: Gang, gates: Path) -> None:
        self.gang, self.gates = gang, gates
        self._tries = 0
        gates.mkdir(parents=True, exist_ok=True)

    @property
    def program(self) -> str:
        return PROGRAM.read_text()

    def start(self, phase: str = "", **fields: Any) -> Watch:
        """Begin a try; with ``phase`` wait until its replica has come there (the gates before it are opened)."""
        before = set(self.arrivals(phase)) if phase else set()
        if phase:
            self.open(*RUNNING[: RUNNING.index(phase)])
        self._tries += 1
        defaults: dict[str, Any] = {"require_checkpoint": True, "tries_left": 3, "kill_grace_seconds": 5.0}
        watch = self.gang.start(
            self.program,
            try_number=self._tries,
            environment={"MATRIX_GATES": str(self.gates)},
            **(defaults | fields),
        )
        if phase:
            wait_for(lambda: set(self.arrivals(phase)) - before, f"a replica {phase}; {watch.infos} {watch.error}")
        return watch

    def open(self, *gates: str) -> None:
        for gate in gates or RUNNING:
            (self.gates / f"open-{gate}").touch()

    def arrivals(self, phase: str) -> list[int]:
        """Pids of the processes that came to a phase, oldest first."""
        found = sorted(self.gates.glob(f"{phase}-0-*"), key=lambda path: path.stat().st_mtime_ns)
        return [int(path.name.rpartition("-")[2]) for path in found]

    @property
    def checkpoints(self) -> Path:
        return self.gang.folder / "replica-0" / "generation-1" / "checkpoints"

    def complete(self) -> str | None:
        """Prefix of the newest complete checkpoint."""
        return latest_complete(self.checkpoints).prefix
