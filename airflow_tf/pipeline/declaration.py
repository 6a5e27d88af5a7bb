"""From a file to a checked declaration, with every problem of the file at once."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.session_config.roles import ROLE_KEYS
from airflow_tf.core.session_config.types import WHOLE_PERCENT, ConfigContext
from airflow_tf.core.session_config.types import Problem as ConfigProblem
from airflow_tf.core.session_config.validation import judge
from airflow_tf.core.templates import without_templates
from airflow_tf.core.units import parse_share
from airflow_tf.pipeline.errors import DataPath, InvalidDeclarationError, Problem, problems_of
from airflow_tf.pipeline.extends import read_declaration
from airflow_tf.pipeline.mending import mend
from airflow_tf.pipeline.models import Declaration
from airflow_tf.pipeline.rules import conflicts
from airflow_tf.pipeline.variables import unknown_names
from airflow_tf.pipeline.yaml_reader import Document

_UNBOUNDED_BYTES = 2**60
_SESSION_CONFIG: DataPath = ("train", "session_config")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A declaration and the document it was read from."""

    declaration: Declaration
    document: Document


def load_declaration(file: Path) -> Loaded:
    """Read and check the declaration ``file``.

    :raises InvalidDeclarationError: with every problem of the file.
    """
    return check_document(read_declaration(file))


def check_document(document: Document) -> Loaded:
    """Check a document that has been read.

    :raises InvalidDeclarationError: with every problem of the file.
    """
    problems: list[Problem] = []
    declaration = whole = None
    broken: list[DataPath] = []
    try:
        declaration = whole = _validate(document.data, document.file)
    except ValidationError as error:
        problems += problems_of(error, Declaration, document.locate)
        data, broken = mend(document.data, error)
        with contextlib.suppress(ValidationError):  # too much of it is wrong to say how the rest fits together
            whole = _validate(data, document.file)
    for clash in conflicts(whole, broken) if whole is not None else ():
        problems.append(Problem(document.locate(clash.path), clash.path, clash.what, clash.why, clash.todo))
    params = None if whole is None or any(path[:1] == ("params",) for path in broken) else whole.params
    for unknown in unknown_names(document.data, params):
        if not any(problem.path == unknown.path for problem in problems):
            problems.append(Problem(document.locate(unknown.path), unknown.path, unknown.what, todo=unknown.todo))
    for found in _session_config_problems(document.data):
        path = (*_SESSION_CONFIG, *_split(found.path))
        problems.append(Problem(document.locate(path), path, found.why, todo=found.todo))
    if declaration is None or problems:
        raise InvalidDeclarationError.of(document.file, problems)
    return Loaded(declaration, document)


def _validate(data: dict[str, Any], file: Path) -> Declaration:
    return Declaration.model_validate(data, context={"folder": file.parent})


def _session_config_problems(data: dict[str, Any]) -> list[ConfigProblem]:
    """Judge the literal part of the session config; the rest is judged when it is rendered, for each replica."""
    train, devices = data.get("train"), data.get("devices")
    config = train.get("session_config") if isinstance(train, dict) else None
    if not isinstance(train, dict) or not isinstance(config, dict):
        return []
    context = _context(train, devices if isinstance(devices, dict) else {})
    given = [role for role in ROLE_KEYS if isinstance(config.get(role), dict)]
    literal = without_templates(config)
    found = list(judge({key: item for key, item in literal.items() if key not in given}, context).errors)
    for role in given:
        found += [
            replace(problem, path=f"{role}.{problem.path}".rstrip("."))
            for problem in judge(literal[role], context).errors
        ]
    return found


def _context(train: dict[str, Any], devices: dict[str, Any]) -> ConfigContext:
    """Return the replica to judge for: where the devices are not known yet, GPUs with memory enough."""
    api, kind, count, share = train.get("api"), devices.get("kind"), devices.get("per_replica"), devices.get("share")
    return ConfigContext(
        api="v1" if api == "v1" else "tf2" if api == "tf2" else "auto",
        devices=count if isinstance(count, int) else 1,
        kind="cpu" if kind == "cpu" else "gpu",
        memory_bytes=_UNBOUNDED_BYTES,
        share_percent=_share_percent(share) if kind not in ("static", "cpu") else WHOLE_PERCENT,
    )


def _share_percent(share: Any) -> int:  # noqa: ANN401  any YAML value
    try:
        return parse_share(share)
    except DeclarationError:  # is reported for itself
        return WHOLE_PERCENT


def _split(path: str) -> DataPath:
    """Return ``a.b[0].c`` as its parts."""
    return tuple(int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path))
