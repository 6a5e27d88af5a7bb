"""Session configs as files or as rendered text: YAML, JSON, or protobuf's text format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeGuard

import yaml
from google.protobuf import json_format, text_format

from airflow_tf.core.descriptors import message_class
from airflow_tf.core.errors import SessionConfigError, TemplateError
from airflow_tf.core.session_config.parsing import suggest
from airflow_tf.core.session_config.types import Problem
from airflow_tf.core.templates import is_template, render

TEXT_FORMAT = frozenset({".pbtxt", ".textproto", ".prototxt"})
_YAML = frozenset({".yaml", ".yml", ".json"})
_TEMPLATE = frozenset({".j2", ".jinja", ".jinja2"})
_UNKNOWN = re.compile(r'Message type "([\w.]+)" has no field named "([^"]+)"')


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a repeated key is an error, as everywhere else in a declaration."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 (as the base)
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if isinstance(key, str) and keys.count(key) > 1:
                raise yaml.MarkedYAMLError(problem=f"{key} is given twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def names_file(value: object) -> TypeGuard[str]:
    """Tell whether a session config is given as the name of a file: one line, no template, with a known ending."""
    known = (*_YAML, *TEXT_FORMAT, *_TEMPLATE)
    return isinstance(value, str) and "\n" not in value and not is_template(value) and value.endswith(known)


def form_of(name: str) -> str:
    """Return the ending that tells a file's form, before one of a template; empty where there is none.

    :raises SessionConfigError: if it is of no form that a session config can have.
    """
    endings = [ending for ending in Path(name).suffixes if ending not in _TEMPLATE][-1:]
    for ending in endings:
        if ending not in _YAML | TEXT_FORMAT:
            known = ", ".join(sorted(_YAML | TEXT_FORMAT))
            raise SessionConfigError(name, f"its ending {ending} names no known form", f"Known are {known}.")
    return "".join(endings)


def in_file(name: str, error: SessionConfigError) -> SessionConfigError:
    """Return the error of a config with the name of the file that it comes from."""
    return SessionConfigError(f"{name}: {error.what}", error.why, error.todo)


def read_file(file: Path, variables: dict[str, Any]) -> Any:  # noqa: ANN401 - judging it is the caller's task
    """Read a session config from a file whose ending tells its form; ``.j2`` after it is allowed.

    A file with control blocks is rendered as a whole; templates in single values of YAML and JSON stay as they are
    where they need what only Airflow knows.

    :param variables: what templates may use.
    :raises SessionConfigError: if the file cannot be read or parsed.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise SessionConfigError(str(file), str(reason), "Give a file with a session config.") from error
    form = form_of(str(file))
    if is_template(text) and ("{%" in text or form in TEXT_FORMAT or file.suffix in _TEMPLATE):
        try:
            text = render(text, variables, file.name)
        except TemplateError as error:
            todo = "Here only replica.index, replica.count and replica.role have a value."
            raise SessionConfigError(file.name, str(error), todo) from error
    return parse_text(text, form)


def parse_text(text: str, form: str = "") -> Any:  # noqa: ANN401 - judging it is the caller's task
    """Parse a session config written as text: YAML (JSON is a part of it), or protobuf's text format.

    :param form: ending of the file it comes from; without one the text format is tried where YAML has no mapping.
    :raises SessionConfigError: if it is neither, or has a field that ConfigProto does not have.
    """
    if form in TEXT_FORMAT:
        return _parse_text_format(text)
    try:
        value = yaml.load(text, _UniqueKeys)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        if not form:
            return _parse_text_format(text)
        where = getattr(error, "problem_mark", None)
        line = f"line {where.line + 1}, column {where.column + 1}: " if where else ""
        why = getattr(error, "problem", None) or str(error)
        raise SessionConfigError("session_config", f"{line}{why}", "Correct the YAML or JSON.") from error
    if isinstance(value, str) and not form and value.strip() not in {"None", "null"}:
        return _parse_text_format(text)
    return value


def _parse_text_format(text: str) -> dict[str, Any]:
    message = message_class(__package__, "config.fds", "tensorflow.ConfigProto")()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise _text_error(error) from error
    result: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return result


def _text_error(error: text_format.ParseError) -> SessionConfigError:
    unknown = _UNKNOWN.search(str(error))
    line = f"line {error.GetLine()}, column {error.GetColumn()}: "
    if unknown is None:
        why = re.sub(r"^\d+:\d+ : ", "", str(error)).rstrip(".")
        return SessionConfigError("session_config", line + why, "Correct it, or write it as YAML.")
    owner, name = unknown.groups()
    problem: Problem = suggest(owner, name)
    return SessionConfigError(problem.full_path, line + problem.why, problem.todo)
