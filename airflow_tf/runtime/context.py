"""What a program may ask about the run it is part of. Optional: everything is in environment variables, too."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from airflow_tf.core.launch import CLUSTER_VARIABLE


@dataclass(frozen=True, slots=True)
class RunContext:
    """One replica's view of its run; alone (``python train.py``) it is replica 0 of 1 with folders below ``.``.

    :param inputs: name -> folder of staged files.
    :param resume_from: prefix of the checkpoint to continue from, None to start anew.
    :param checkpoint_dir: where checkpoints are saved; an evaluator finds those of the training there.
    :param role: what it is in its cluster: chief, worker, ps or evaluator; empty without one.
    :param candidates: in an evaluation, name -> checkpoint prefix.
    """

    replica: int
    replicas: int
    inputs: dict[str, Path]
    checkpoint_dir: Path
    resume_from: str | None
    role: str = ""
    candidates: dict[str, str] = field(default_factory=dict)
    metrics_file: Path | None = None
    evaluation_file: Path | None = None
    training_ended_file: Path | None = None

    def training_has_ended(self) -> bool:
        """Tell an evaluator whether no further checkpoint will come; alone nobody else trains.

        As ``timeout_fn`` of ``tf.train.checkpoints_iterator`` it ends the iteration after the last checkpoint.
        """
        return self.training_ended_file is None or self.training_ended_file.exists()

    def report(self, step: int, **metrics: float) -> None:
        """Append one line of metrics; the last values of each name become the replica's result."""
        if self.metrics_file is not None:
            line = json.dumps(
                {"step": step, "time": time.time(), **{key: float(value) for key, value in metrics.items()}}
            )
            with self.metrics_file.open("a") as file:
                file.write(line + "\n")

    def report_evaluation(
        self, candidates: dict[str, dict[str, float]], baselines: dict[str, dict[str, float]] | None = None
    ) -> None:
        """Write what an evaluation found: name -> metric -> value for each candidate and for baselines beside them."""
        if self.evaluation_file is not None:
            self.evaluation_file.write_text(json.dumps({"candidates": candidates, "baselines": baselines or {}}))


def context() -> RunContext:
    """Return the run that this process is part of, read from ``AIRFLOW_TF_*`` variables."""
    prefix = "AIRFLOW_TF_INPUT_"
    environ = os.environ
    inputs = {name[len(prefix) :].lower(): Path(value) for name, value in environ.items() if name.startswith(prefix)}
    metrics, evaluation = environ.get("AIRFLOW_TF_METRICS_FILE"), environ.get("AIRFLOW_TF_EVALUATION_FILE")
    ended = environ.get("AIRFLOW_TF_TRAINING_ENDED_FILE")
    return RunContext(
        replica=int(environ.get("AIRFLOW_TF_REPLICA", "0")),
        replicas=int(environ.get("AIRFLOW_TF_REPLICAS", "1")),
        inputs=inputs,
        checkpoint_dir=Path(environ.get("AIRFLOW_TF_CHECKPOINT_DIR", "checkpoints")),
        resume_from=environ.get("AIRFLOW_TF_RESUME_FROM"),
        role=json.loads(environ.get(CLUSTER_VARIABLE, "{}")).get("task", {}).get("type", ""),
        candidates=json.loads(environ.get("AIRFLOW_TF_CANDIDATES", "{}")),
        metrics_file=Path(metrics) if metrics else None,
        evaluation_file=Path(evaluation) if evaluation else None,
        training_ended_file=Path(ended) if ended else None,
    )
