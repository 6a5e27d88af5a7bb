"""The user's evaluation program asked again and again by one task, on this host's CPU: each answer decides the next.

It needs no device of its own, so it never waits for one; TensorFlow sees no GPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_tf.operators.evaluate import check_evaluation
from airflow_tf.operators.local_program import LocalProgram


@dataclass(frozen=True, slots=True)
class LocalEvaluation:
    """Runs a program on candidates and returns their metrics; each call has a folder of its own below ``folder``.

    :raises CheckpointError: if the program fails, takes too long, or writes no result.
    """

    program: LocalProgram
    folder: Path

    def __call__(self, candidates: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Evaluate ``candidates`` (name -> prefix); None stands for what is not finite."""
        number = len(list(self.folder.glob("*"))) if self.folder.exists() else 0
        folder = self.folder / str(number)
        self.program.run(folder, {"AIRFLOW_TF_CANDIDATES": json.dumps(dict(candidates))})
        return dict(check_evaluation(_read(folder / "evaluation.json"))["candidates"])


def _read(path: Path) -> Any:  # noqa: ANN401 (whatever the program wrote)
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
