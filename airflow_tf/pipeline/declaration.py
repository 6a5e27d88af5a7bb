"""From a file to a checked declaration, with every problem of the file at once."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.sdk import get_parsing_context
from pydantic import ValidationError

from airflow_tf.pipeline.errors import DataPath, InvalidDeclarationError, Problem, problems_of
from airflow_tf.pipeline.extends import read_declaration
from airflow_tf.pipeline.fields import code_path
from airflow_tf.pipeline.mending import mend
from airflow_tf.pipeline.models import Declaration
from airflow_tf.pipeline.rules import conflicts
from airflow_tf.pipeline.session_config import findings
from airflow_tf.pipeline.stages import has_stages, in_order, link_problems, split
from airflow_tf.pipeline.variables import unknown_names
from airflow_tf.pipeline.yaml_reader import Document

_SESSION_CONFIG: DataPath = ("train", "session_config")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A declaration and the document it was read from.

    ``stages`` are its trainings, each after those that it waits for, where it has several: then ``declaration`` is that
    of the first one, and says what concerns the DAG.
    """

    declaration: Declaration
    document: Document
    stages: tuple[Stage, ...] = ()

    def told(self, find: Callable[[Loaded], Iterable[Problem]]) -> list[Problem]:
        """Return what ``find`` finds in each training, once, with its path in the file."""
        if not self.stages:
            return list(find(self))
        paths = {part.name: part for part in split(self.document)[0]}
        return list(
            dict.fromkeys(paths[stage.name].told(problem) for stage in self.stages for problem in find(stage.loaded))
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """One of several trainings: ``before`` are the stages that it waits for."""

    name: str
    loaded: Loaded
    before: tuple[str, ...]
    starts_from: str | None


def load_declaration(file: Path) -> Loaded:
    """Read and check the declaration ``file``.

    :raises InvalidDeclarationError: with every problem of the file.
    """
    return check_document(read_declaration(file))


def check_document(document: Document) -> Loaded:
    """Check a document that has been read.

    :raises InvalidDeclarationError: with every problem of the file.
    """
    return _check_stages(document) if has_stages(document) else _check_one(document)


def _check_stages(document: Document) -> Loaded:
    """Check each stage as a declaration of its own, and how they follow each other."""
    parts, problems = split(document)
    checked: dict[str, Loaded] = {}
    for part in parts:
        try:
            checked[part.name] = _check_one(part.document)
        except InvalidDeclarationError as error:
            problems += [part.told(problem) for problem in error.problems]
    problems += link_problems(document, parts, {name: loaded.declaration for name, loaded in checked.items()})
    if problems:
        raise InvalidDeclarationError.of(document.file, list(dict.fromkeys(problems)))
    stages = tuple(
        Stage(part.name, checked[part.name], tuple(part.before), part.links.starts_from) for part in in_order(parts)
    )
    return Loaded(stages[0].loaded.declaration, document, stages)


def _check_one(document: Document) -> Loaded:
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
    for found in findings(document.data, document.file.parent):
        path = (*_SESSION_CONFIG, *_split(found.path))
        problems.append(Problem(document.locate(path), path, found.what, todo=found.todo))
    if declaration is None or problems:
        raise InvalidDeclarationError.of(document.file, problems)
    return Loaded(declaration, document)


def _validate(data: dict[str, Any], file: Path) -> Declaration:
    train = data.get("train")
    code = train.get("code") if isinstance(train, dict) else None
    known = {"code": str(code_path(file.parent, code))} if isinstance(code, str) and code else {}
    # A task that starts has the run's copy of the code, whatever has become of the source.
    is_copied = get_parsing_context().dag_id is not None
    return Declaration.model_validate(data, context={"folder": file.parent, "is_copied": is_copied, **known})


def _split(path: str) -> DataPath:
    """Return ``a.b[0].c`` as its parts."""
    return tuple(int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path))
