"""A user's program run and awaited by one task, on this host's CPU: a process like a replica's, with no device."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.operators.launching import find_entrypoint
from airflow_tf.runtime import bootstrap, process
from airflow_tf.supervisor.processes import base_environment

_TAIL_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """An entrypoint with all that it is told at every call.

    :param name: what it is called in errors.
    :param inputs: name -> staged folder.
    """

    name: str
    entrypoint: str
    dag_folder: Path
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    api: str = "auto"
    python: str | None = None
    timeout_seconds: float = 3600.0

    def run(self, folder: Path, variables: Mapping[str, str], checkpoint: str | None = None) -> None:
        """Run it once in a new ``folder``, which holds its output afterwards.

        :param variables: what this call adds to the environment.
        :param checkpoint: the prefix that it finds as ``AIRFLOW_TF_RESUME_FROM``.
        :raises CheckpointError: if it fails, or takes longer than ``timeout_seconds``.
        """
        folder.mkdir(mode=0o700, parents=True)
        launch = self._launch(folder, variables, checkpoint)
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
            what = f"the {self.name} took longer than {self.timeout_seconds:g} s"
            raise CheckpointError(what, todo="Let it do less, on less data.") from error
        if code:
            tail = output.read_text(errors="replace")[-_TAIL_CHARACTERS:]
            raise CheckpointError(f"the {self.name} program ended with code {code}", f"its output ends:\n{tail}")

    def _launch(self, folder: Path, variables: Mapping[str, str], checkpoint: str | None) -> ReplicaLaunch:
        entrypoint, code_folder = find_entrypoint(self.entrypoint, self.dag_folder)
        return ReplicaLaunch(
            replica=0,
            count=1,
            entrypoint=entrypoint,
            code_folder=code_folder,
            arguments={key: str(value) for key, value in self.arguments.items()},
            inputs=dict(self.inputs),
            environment={**self.environment, **variables},
            api=self.api,
            require_checkpoint=False,
            folder=str(folder),
            checkpoint_folder=str(folder),
            resume_from=checkpoint,
        )
