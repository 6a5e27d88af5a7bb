"""What becomes of a session config by itself, before it is known which replica it is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_tf.core.session_config.plan import SESSION, leaves
from airflow_tf.core.session_config.roles import ROLE_KEYS
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
    if isinstance(value, Mapping) and any(key in ROLE_KEYS for key in value):
        return _describe_roles(value)
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


def _describe_roles(value: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the part for all replicas and the part of each role, whose paths begin with the role."""
    result = describe_config({key: item for key, item in value.items() if key not in ROLE_KEYS})
    for role in (key for key in value if key in ROLE_KEYS):
        own = describe_config(value[role])
        for kind in ("errors", "warnings"):
            result[kind] += [
                row | {"path": row["path"].replace("session_config", f"session_config.{role}", 1)} for row in own[kind]
            ]
        result["valid"] = result["valid"] and own["valid"]
        result["normalised"] = result["normalised"] | {role: own["normalised"]}
        result["fields"] |= {f"{role}.{path}": ways for path, ways in own["fields"].items()}
    return result


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
