"""What a supervisor is told to run, and what a replica reads when it starts. Standard library only."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

EXIT_REFUSED = 78
"""Exit code of a replica that refused its launch (session config, entrypoint); ``error.json`` says why."""

STACK_SIGNAL = signal.SIGQUIT
"""At this signal a replica writes the stacks of all its threads to its output, and goes on."""

METRICS_FILE = "metrics.jsonl"
EVALUATION_FILE = "evaluation.json"
TRAINING_ENDED_FILE = "training_ended"
"""Appears in the folder of an evaluator's attempt when no further checkpoint will come."""

PARTITIONS_FILE = "partitions.jsonl"
"""Where a replica with ``log_device_placement`` tells the operations of its graphs' partitions, one a line."""

KERNELS_FILE = "kernels.json"
"""Where a replica with GPUs and ``log_device_placement`` tells which operations have kernels for GPUs."""

CLUSTER_VARIABLE = "TF_CONFIG"
"""Environment variable in which TensorFlow looks for its cluster when a strategy or a server is made."""

IMPORT_TIME_PREFIXES = ("TF_", "XLA_", "KERAS_", "CUDA_", "OMP_", "MKL_", "OPENBLAS_", "LD_", "PYTHON", "NVIDIA_")
"""Environment variables that TensorFlow, Keras or Python read once, at import."""


def import_time_part(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables of ``environment`` that are read at import time."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(IMPORT_TIME_PREFIXES) and name != CLUSTER_VARIABLE
    }


@dataclass(frozen=True, slots=True)
class GangLaunch:
    """A gang as its supervisor needs it; sent on the supervisor's standard input.

    :param key: ``GangKey`` as JSON.
    :param count: replicas that will come to this supervisor; when all are final it need not wait for more.
    :param folder: run folder of the gang on this host.
    :param python: the training interpreter.
    :param start_method: ``zygote`` (fork after ``import tensorflow``) or ``spawn``.
    :param environment: declared variables of the first replica that arrives; the zygote starts with those that are
        read at import time.
    :param settings: ``Settings`` as JSON, secrets of the ledger included: never written to a file.
    """

    key: dict[str, Any]
    count: int
    folder: str
    python: str
    start_method: str
    environment: dict[str, str]
    settings: dict[str, Any] = field(repr=False)

    def dumps(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> GangLaunch:
        """Read what :meth:`dumps` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Plan:
    """How the replicas of a gang belong together; the same for all of them.

    :param strategy: ``independent``, ``sync``, ``async``, ``v1_cluster`` or ``towers``.
    :param roles: role -> replicas in the order of their numbers; empty where each replica lives and dies alone.
    :param success: ``all``, ``chief`` or ``at_least``: which replicas must succeed.
    :param at_least: how many must, under that policy.
    :param restarts: how often a supervisor starts again what died, within one try of the tasks.
    :param start_timeout_seconds: time within which every member of a gang must have joined it.
    :param progress_timeout_seconds: longest time without progress; None: never ended for it.
    :param evaluator_grace_seconds: time that an evaluator has for the last checkpoint when the training has ended.
    :param early_stop: of trials, the fields of :class:`airflow_tf.core.sweep.MedianRule`; None: none is stopped early.
    """

    strategy: str = "independent"
    roles: dict[str, int] = field(default_factory=dict)
    success: str = "all"
    at_least: int = 0
    restarts: int = 0
    start_timeout_seconds: float = 300.0
    progress_timeout_seconds: float | None = None
    evaluator_grace_seconds: float = 600.0
    early_stop: dict[str, Any] | None = None

    @property
    def is_gang(self) -> bool:
        """Tell whether the replicas form a cluster and are started, restarted and ended together."""
        return bool(self.roles)


@dataclass(frozen=True, slots=True)
class ReplicaLaunch:
    """One attempt of one replica. The operator fills the first block, the supervisor the second.

    ``entrypoint`` is the absolute path of a script or ``module:function`` (found from ``code_folder``);
    ``working_directory`` is where it begins, empty for ``folder``; ``inputs`` maps names to staged folders;
    ``session_config`` is validated proto JSON; ``memory_limit_bytes`` is for the host's memory; ``memory_bytes`` is
    the memory of the replica's smallest device, None where it is not reported; ``cgroup`` is the folder of the cgroup
    that the replica enters, empty for none. ``initial_checkpoint`` is the local prefix to begin with where the run has
    no checkpoint of its own yet, and always where ``fresh``. ``copied_checkpoint`` is the local prefix of one of its
    own, saved by another host at ``copied_at_ns``. ``watched_folder`` is the folder whose checkpoints an evaluator
    looks at, empty for all others. ``upload`` says where its newest checkpoint is copied while it trains: ``uri`` (one
    folder for all generations), ``options`` (of the storage, which may hold secrets), ``environment`` (what its client
    reads) and ``every_seconds``.
    """

    replica: int
    count: int
    entrypoint: str
    code_folder: str
    working_directory: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    session_config: dict[str, Any] = field(default_factory=dict)
    api: str = "auto"
    require_checkpoint: bool = True
    kill_grace_seconds: float = 30.0
    memory_limit_bytes: int | None = None
    initial_checkpoint: str | None = None
    copied_checkpoint: str | None = None
    copied_at_ns: int = 0
    fresh: bool = False
    allow_from_scratch: bool = False

    generation: int = 1
    attempt: int = 0
    token: str = ""
    folder: str = ""
    checkpoint_folder: str = ""
    resume_from: str | None = None
    visible_devices: str = "-1"
    memory_bytes: int | None = None
    cgroup: str = ""
    watched_folder: str = ""
    upload: dict[str, Any] | None = field(default=None, repr=False)
    seed: int = 0

    def for_attempt(self, **changes: Any) -> ReplicaLaunch:
        """Return a copy with the supervisor's fields set."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return asdict(self)

    def write(self, path: Path) -> None:
        """Write the launch for the replica, readable by its owner only, without ``upload``, which holds secrets."""
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(replace(self, upload=None)), indent=1, sort_keys=True))

    @classmethod
    def read(cls, path: Path) -> ReplicaLaunch:
        """Read what :meth:`write` wrote."""
        return cls(**json.loads(path.read_text()))

    @property
    def has_gpu(self) -> bool:
        """Tell whether the replica was given GPUs."""
        return self.visible_devices != "-1"

    @property
    def import_time_environment(self) -> dict[str, str]:
        """Declared variables that must be set before TensorFlow is imported."""
        return import_time_part(self.environment)

    def variables(self) -> dict[str, str]:
        """Return the variables that a replica's program finds in its environment (the declared ones included)."""
        folder = Path(self.folder)
        found = {
            **self.environment,
            "AIRFLOW_TF_FENCE": self.token,
            "AIRFLOW_TF_REPLICA": str(self.replica),
            "AIRFLOW_TF_REPLICAS": str(self.count),
            "AIRFLOW_TF_ATTEMPT": str(self.attempt),
            "AIRFLOW_TF_RUN_FOLDER": self.folder,
            "AIRFLOW_TF_CHECKPOINT_DIR": self.watched_folder or self.checkpoint_folder,
            "AIRFLOW_TF_METRICS_FILE": str(folder / METRICS_FILE),
            "AIRFLOW_TF_EVALUATION_FILE": str(folder / EVALUATION_FILE),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": self.visible_devices,
        }
        if self.watched_folder:
            found["AIRFLOW_TF_TRAINING_ENDED_FILE"] = str(folder / TRAINING_ENDED_FILE)
        for name, staged in self.inputs.items():
            found[f"AIRFLOW_TF_INPUT_{name.upper()}"] = staged
        if self.resume_from:
            found["AIRFLOW_TF_RESUME_FROM"] = self.resume_from
        return found
