"""A private Airflow home with the flights example, and commands run in it as a user runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from airflow_tf.core.identity import GangKey, RunFolders
from airflow_tf.core.settings import Settings
from airflow_tf.ledger import Ledger, open_ledger

ROOT = Path(__file__).resolve().parents[2]
COMMAND_DEADLINE_SECONDS = 300


@dataclass
class AirflowHome:
    """``$AIRFLOW_HOME`` in ``folder`` with a DAG folder of its own; nothing of the caller's Airflow leaks in."""

    folder: Path
    store: str  # URI below which the example finds its data and publishes
    extra: dict[str, str] = field(default_factory=dict)
    cpu_slots: int = 2

    @property
    def dags(self) -> Path:
        return self.folder / "dags"

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
        return clean | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW_TF_TEST_HOME": str(self.folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__AIRFLOW_TF__LOCK_DIR": str(self.folder / "locks"),
            "AIRFLOW__AIRFLOW_TF__CPU_SLOTS": str(self.cpu_slots),
            "AIRFLOW_VAR_FLIGHTS": self.store,
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **self.extra,
        }

    @property
    def settings(self) -> Settings:
        home = self.folder / "airflow_tf"
        return Settings(home, f"sqlite:///{home / 'ledger.db'}", self.folder / "locks", cpu_slots=self.cpu_slots)

    @property
    def ledger(self) -> Ledger:
        return open_ledger(self.settings)

    def gang_folder(self, run_id: str, task_id: str = "train", dag_id: str = "flights") -> Path:
        key = GangKey(self.ledger.ledger_id, dag_id, run_id, task_id)
        return RunFolders(self.settings.home, dag_id, run_id).gang(key)

    def versions(self) -> set[Path]:
        """Return the folders of the versions that were published."""
        return set(Path(self.store.removeprefix("file://"), "models").glob("v=*"))

    def assert_one_whole_result(self, before: set[Path]) -> None:
        """Assert that one whole version was published since ``before``, and nothing half-written."""
        (version,) = self.versions() - before
        assert {"_SUCCESS", "manifest.json", "model.index"} <= {path.name for path in version.iterdir()}
        assert not [path for path in version.parent.iterdir() if path.name.startswith(".")]

    def copy_example(self) -> None:
        self.dags.mkdir(parents=True, exist_ok=True)
        (self.folder / "locks").mkdir(exist_ok=True)
        for name in ("flights.tf.yaml", "flights.py", "flights_by_hand.py", ".airflowignore"):
            shutil.copy(ROOT / "dags" / name, self.dags / name)
        text = (self.dags / "flights.tf.yaml").read_text()  # a retry that comes while the replica still trains
        (self.dags / "flights.tf.yaml").write_text(
            text.replace("train:\n  entry", "train:\n  retry_delay: 2s\n  entry")
        )
        shutil.copytree(ROOT / "dags" / "flights", self.dags / "flights", dirs_exist_ok=True)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "airflow", *words]

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*words),
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_DEADLINE_SECONDS,
            check=False,
        )
        assert not check or done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-6000:]}"
        return done
