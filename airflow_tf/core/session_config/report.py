"""What becomes of a session config by itself, before it is known which replica it is for."""

from __future__ import annotations

from typing import Any

from airflow_tf.core.session_config.plan import SESSION, leaves
from airflow_tf.core.session_config.types import ConfigContext, Judgement, Problem
from airflow_tf.core.session_config.validation import judge

_MANY = 2**60  # devices, or bytes: nothing is refused for being more than there is
_REMEDY = "Correct the value, or leave the field out."
SERVER = "default config of tf.distribute.Server"
ANYWHERE = ConfigContext(api="v1", devices=0, kind="gpu")
"""Sessions take the most, and an unknown number of devices forbids no index."""

_WAYS = {
    "v1": ConfigContext(api="v1", devices=0, kind="gpu"),
    "tf2": ConfigContext(api="tf2", devices=_MANY, kind="gpu", memory_bytes=_MANY),
    "server": ConfigContext(api="v1", devices=0, kind="gpu", strategy="v1_cluster"),
}


def describe_config(value: Any) -> dict[str, Any]:  # noqa: ANN401 - judging it is the task
    """Return what is wrong with a session config, its normal form, and for each field who applies it or refuses it.

    :return: ``valid``, ``errors`` and ``warnings`` (each with path, reason, remedy), ``normalised``, ``fields`` (path
        to ``v1``, ``tf2``, ``server``: the call that applies it, or ``refused: why``).
    """
    verdict = judge(value, ANYWHERE)
    ways = {name: judge(value, context) for name, context in _WAYS.items()}
    fields = {
        path: {name: _fate(path, name, judgement) for name, judgement in ways.items()}
        for path, _ in leaves(verdict.config)
    }
    return {
        "valid": not verdict.errors,
        "errors": [problem_row(problem) for problem in verdict.errors],
        "warnings": [problem_row(problem) for problem in verdict.warnings],
        "normalised": verdict.config,
        "fields": fields,
    }


def problem_row(problem: Problem) -> dict[str, str]:
    """Return a problem as the three things that a reader needs."""
    return {"path": problem.full_path, "reason": problem.why, "remedy": problem.todo or _REMEDY}


def _fate(path: str, way: str, judgement: Judgement) -> str:
    of_field = [error for error in judgement.errors if f"{error.path}.".startswith((f"{path}.", f"{path}["))]
    if of_field:
        last = of_field[-1]  # what the API cannot do comes after what is wrong with the value
        return f"refused: {last.why.rstrip('.')}. {last.todo}".rstrip()
    by = next(field.by for field in judgement.fields if field.path == path)
    return SERVER if way == "server" and by == SESSION else by
