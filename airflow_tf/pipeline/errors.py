"""What is wrong with a declaration, and where: every problem of a file at once, each with its line and column."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from airflow_tf.core.errors import DeclarationError
from airflow_tf.pipeline.fields import REFUSED

_WORDS: dict[object, str] = {None: "null", True: "true", False: "false"}
_REMEDIES = {"list_type": "Write it as a list, like [a, b].", "string_type": "Put it in quotes."}
"""What to do about a kind of error that says only what is wrong."""

DataPath = tuple[str | int, ...]
"""Keys and list indices from the top of a declaration to a value."""


class Position(NamedTuple):
    """A place in a file, counted from 1 as editors do; ``file`` is None in the declaration itself."""

    line: int
    column: int
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a declaration."""

    position: Position
    path: DataPath
    what: str
    why: str = ""
    todo: str = ""

    @property
    def message(self) -> str:
        """The path and the three parts in one line."""
        path = format_path(self.path)
        return str(DeclarationError(f"{path}: {self.what}" if path else self.what, self.why, self.todo))

    def format(self, file: Path) -> str:
        """Return ``file:line:column: message``, the form that editors and CI make a link of."""
        return f"{self.position.file or file}:{self.position.line}:{self.position.column}: {self.message}"


class InvalidDeclarationError(DeclarationError):
    """A declaration file has problems; the message lists all of them."""

    problems: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, file: Path, problems: Sequence[Problem]) -> Self:
        """Return the error for ``file``, its problems in the order of their positions."""
        ordered = tuple(sorted(problems, key=lambda problem: (bool(problem.position.file), problem.position[:2])))
        error = cls("\n".join(problem.format(file) for problem in ordered))
        error.problems = ordered
        return error

    def __str__(self) -> str:
        """Return one line for each problem."""
        return self.what


def format_path(path: DataPath) -> str:
    """Return ``path`` as ``train.arguments.epochs`` or ``tags[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def suggest(word: object, allowed: Sequence[str]) -> str:
    """Return ``Did you mean "x"?`` for the closest of ``allowed``, or nothing."""
    close = difflib.get_close_matches(str(word).replace("-", "_"), allowed, n=1)
    return f'Did you mean "{close[0]}"?' if close else ""


def problems_of(
    error: ValidationError, model: type[BaseModel], locate: Callable[[DataPath], Position]
) -> list[Problem]:
    """Turn pydantic's report into problems with positions and remedies."""
    return [_problem_of(details, model, locate) for details in error.errors(include_url=False)]


def _problem_of(details: ErrorDetails, model: type[BaseModel], locate: Callable[[DataPath], Position]) -> Problem:
    path = tuple(part for part in details["loc"] if part != "[key]")  # pydantic's mark of an error in a key
    what, why, todo = _describe(details, model)
    return Problem(locate(path), path, what, why, todo)


def _describe(details: ErrorDetails, model: type[BaseModel]) -> tuple[str, str, str]:
    path, kind = details["loc"], details["type"]
    context = details.get("ctx", {})
    if kind == REFUSED:
        return context["what"], context["why"], context["todo"]
    if kind == "extra_forbidden":
        return "unknown key", "", _remedy_of_unknown_key(path, model)
    if kind == "missing":
        return "missing", "", "Add it."
    if kind in {"model_type", "dict_type"}:
        return f"{_as_yaml(details['input'])} is not a mapping", "", "Write keys with values below it."
    message = details["msg"][:1].lower() + details["msg"][1:]
    expected = re.findall(r"'(\w+)'", context.get("expected", "")) if kind == "literal_error" else []
    todo = suggest(details["input"], expected) or _REMEDIES.get(kind, "")
    if details["input"] is None:
        todo = "Give a value, or remove the key."
    return f"{_as_yaml(details['input'])} is wrong", message, todo


def _as_yaml(value: object) -> str:
    """Return a value as its user wrote it, or could have."""
    return _WORDS[value] if isinstance(value, bool | None) else repr(value)


def _remedy_of_unknown_key(path: DataPath, model: type[BaseModel]) -> str:
    parent = _model_at(model, path[:-1])
    allowed = sorted(parent.model_fields)
    hint = suggest(path[-1], allowed) or _place_of(str(path[-1]), model)
    return f"{hint} Allowed here: {', '.join(allowed)}.".strip()


def _place_of(key: str, model: type[BaseModel]) -> str:
    """Say where a key belongs that is known elsewhere in the declaration."""
    for name, child in _children(model):
        if key in child.model_fields:
            return f'"{key}" belongs under "{name}".'
    return ""


def _children(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, info in model.model_fields.items():
        child = _model_in(info.annotation)
        if child is not None:
            yield name, child


def _model_in(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401  any annotation
    """Return the model in ``Model``, ``Model | None`` or ``dict[str, Model]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


def _model_at(model: type[BaseModel], path: DataPath) -> type[BaseModel]:
    children = dict(_children(model))
    for part in path:
        if part in children:  # the key of a dict of models is not a field: the model stays
            model = children[str(part)]
            children = dict(_children(model))
    return model
