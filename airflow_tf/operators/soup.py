"""The user's evaluation program asked again and again by one task, on this host's CPU: each answer decides the next.

It needs no device of its own, so it never waits for one; TensorFlow sees no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.operators.evaluate import check_evaluation
from airflow_tf.operators.launching import find_entrypoint
from airflow_tf.runtime import bootstrap, process
from airflow_tf.supervisor.processes import base_environment

_TAIL_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class LocalEvaluation:
    """Runs an entrypoint on candidates and returns their metrics.

    :raises CheckpointError: if the program fails, takes longer than ``timeout_seconds``, or writes no result.
    """

    dag_folder: Path
    folder: Path
    entrypoint: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    timeout_seconds: float = 3600.0

    def __call__(self, candidates: Mapping[str, str]) -> dict[str, dict[str, float]]:
        """Evaluate ``candidates`` (name -> prefix)."""
        number = len(list(self.folder.glob("*"))) if self.folder.exists() else 0
        folder = self.folder / str(number)
        folder.mkdir(mode=0o700, parents=True)
        launch = self._launch(folder, candidates)
        launch.write(folder / "launch.json")
        output = folder / "output.log"
        command = [self.python or sys.executable, bootstrap.__file__, "replica", str(folder / "launch.json")]
        environment = base_environment() | launch.variables() | {process.PARENT_VARIABLE: str(os.getpid())}
        try:
            with output.open("wb") as file:
                code = subprocess.run(
                    command, env=environment, stdout=file, stderr=file, timeout=self.timeout_seconds, check=False
                ).returncode
        except subprocess.TimeoutExpired as error:
            what = f"the evaluation took longer than {self.timeout_seconds:g} s"
            raise CheckpointError(what, todo="Evaluate on less data.") from error
        if code:
            tail = output.read_text(errors="replace")[-_TAIL_CHARACTERS:]
            raise CheckpointError(f"the evaluation program ended with code {code}", f"its output ends:\n{tail}")
        return dict(check_evaluation(_read(folder / "evaluation.json"))["candidates"])

    def _launch(self, folder: Path, candidates: Mapping[str, str]) -> ReplicaLaunch:
        entrypoint, code_folder = find_entrypoint(self.entrypoint, self.dag_folder)
        return ReplicaLaunch(
            replica=0,
            count=1,
            entrypoint=entrypoint,
            code_folder=code_folder,
            arguments={key: str(value) for key, value in self.arguments.items()},
            inputs=dict(self.inputs),
            environment={**self.environment, "AIRFLOW_TF_CANDIDATES": json.dumps(dict(candidates))},
            require_checkpoint=False,
            folder=str(folder),
            checkpoint_folder=str(folder),
        )


def _read(path: Path) -> Any:  # noqa: ANN401 (whatever the program wrote)
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
