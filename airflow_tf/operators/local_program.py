"""A user's program run and awaited by one task, on this host's CPU: a process like a replica's, with no device."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.identity import TOKEN_LENGTH
from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.hooks.code import find_entrypoint
from airflow_tf.runtime import bootstrap, process
from airflow_tf.supervisor.output import OutputKeeper
from airflow_tf.supervisor.processes import base_environment
from airflow_tf.supervisor.results import OUTPUT_FILE, log_tail
from airflow_tf.supervisor.sweep import kill_tree

_OUTPUT_BYTES = 64 * 2**20
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """An entrypoint with all that it is told at every call.

    :param name: what it is called in errors.
    :param dag_folder: where the entrypoint is looked for; with ``is_code`` it holds the whole code of the run.
    :param inputs: name -> staged folder.
    """

    name: str
    entrypoint: str
    dag_folder: Path
    is_code: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    api: str = "auto"
    python: str | None = None
    timeout_seconds: float = 3600.0

    def run(self, folder: Path, variables: Mapping[str, str], checkpoint: str | None = None) -> None:
        """Run it once in a new ``folder``, which holds its output afterwards, as much as a disk can be asked to.

        What it has started ends with it.

        :param variables: what this call adds to the environment.
        :param checkpoint: the prefix that it finds as ``AIRFLOW_TF_RESUME_FROM``.
        :raises CheckpointError: if it fails, or takes longer than ``timeout_seconds``.
        """
        folder.mkdir(mode=0o700, parents=True)
        launch = self._launch(folder, variables, checkpoint)
        launch.write(folder / "launch.json")
        command = [self.python or sys.executable, bootstrap.__file__, "replica", str(folder / "launch.json")]
        environment = base_environment() | launch.variables() | {process.PARENT_VARIABLE: str(os.getpid())}
        with (folder / OUTPUT_FILE).open("ab") as file:
            child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            code = self._wait(child, OutputKeeper(folder / OUTPUT_FILE, _OUTPUT_BYTES))
        finally:
            child.kill()
            child.wait()
            kill_tree(launch.token)
        if code is None:
            what = f"the {self.name} took longer than {self.timeout_seconds:g} s"
            raise CheckpointError(what, todo="Let it do less, on less data.")
        if code:
            raise CheckpointError(
                f"the {self.name} program ended with code {code}", f"its output ends:\n{log_tail(folder)}"
            )

    def _wait(self, child: subprocess.Popen[bytes], keeper: OutputKeeper) -> int | None:
        """Return the exit code, None where the time is over; the output is kept within bounds meanwhile."""
        deadline = time.monotonic() + self.timeout_seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                return child.wait(min(left, _LOOK_SECONDS))
            except subprocess.TimeoutExpired:
                keeper.look()
        return None

    def _launch(self, folder: Path, variables: Mapping[str, str], checkpoint: str | None) -> ReplicaLaunch:
        entrypoint, code_folder = find_entrypoint(self.entrypoint, self.dag_folder, is_code=self.is_code)
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
            token=f"local.{uuid.uuid4().hex}".ljust(TOKEN_LENGTH, "-"),
        )
