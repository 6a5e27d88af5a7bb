"""Names in the templates of a declaration that will not be there when the templates are rendered."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from airflow.sdk import Context
from jinja2.defaults import DEFAULT_NAMESPACE

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.templates import attributes_of, check_syntax, is_template, variables_of
from airflow_tf.hooks.airflow_run import DATED, INSTEAD_OF_DATES
from airflow_tf.pipeline.errors import DataPath, suggest

OWN = ("replica", "inputs")
"""What a training task adds to Airflow's own names."""

_CALLBACKS = "callbacks"
_LISTED = "Airflow's names may be used"
_RENDERED = (_CALLBACKS, "inputs", "devices", "train", "sweep", "evaluate", "approval", "checkpoints")
"""Sections with values that are rendered when a task runs."""

_GUARDS = ("is defined", "is not defined", "default(")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A name that nobody defines."""

    path: DataPath
    what: str
    todo: str


def unknown_names(data: dict[str, Any], params: Collection[str] | None) -> list[Unknown]:
    """Return the unknown names in all templates of a declaration.

    :param params: names of the declared params; None where they are not known.
    """
    found = []
    for path, text in _templates({key: value for key, value in data.items() if key in _RENDERED}, ()):
        own, listed = (OWN, f"{_LISTED}, replica, and inputs.<name>.") if path[0] != _CALLBACKS else ((), f"{_LISTED}.")
        known = sorted({*Context.__annotations__, *DEFAULT_NAMESPACE, *own})
        found += [
            Unknown(path, f"{name!r} is not defined", f"{suggest(name, known)} {listed}".strip())
            for name in sorted(variables_of(text).difference(known))
        ]
        for name in sorted(attributes_of(text, "params").difference(params)) if params is not None else ():
            todo = f"{suggest(name, sorted(params or ()))} Declare it under 'params'.".strip()
            found.append(Unknown(path, f"there is no param {name!r}", todo))
        for name in sorted(variables_of(text) & DATED) if _starts_by_assets(data) and not _is_guarded(text) else ():
            what = f"{name!r} is not there in a run that assets start, which has no logical date"
            found.append(Unknown(path, what, INSTEAD_OF_DATES))
    return found


def _starts_by_assets(data: dict[str, Any]) -> bool:
    schedule = data.get("schedule")
    return isinstance(schedule, list) or (isinstance(schedule, dict) and "assets" in schedule)


def _is_guarded(text: str) -> bool:
    return any(guard in text for guard in _GUARDS)


def _templates(value: Any, path: DataPath) -> Iterator[tuple[DataPath, str]]:  # noqa: ANN401  any YAML value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _templates(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _templates(item, (*path, index))
    elif is_template(value):
        try:
            check_syntax(value)
        except DeclarationError:  # is told for itself
            return
        yield path, value
