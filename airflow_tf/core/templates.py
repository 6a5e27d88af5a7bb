"""Jinja templates in declarations: render first, then demand the type."""

from __future__ import annotations

import datetime as dt
import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, UndefinedError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from airflow_tf.core.errors import TemplateError

_MARKS = ("{{", "{%", "{#")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": True, "false": False}

# A sandbox, since values of a DAG run's configuration come from whoever may trigger the DAG.
_ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)


def _of_moments(form: Callable[[dt.datetime], str]) -> Callable[[dt.datetime | None], str | None]:
    return lambda moment: None if moment is None else form(moment)


_ENVIRONMENT.filters |= {  # Airflow's own: templates that it renders are judged here, too
    "ds": _of_moments(lambda moment: moment.strftime("%Y-%m-%d")),
    "ds_nodash": _of_moments(lambda moment: moment.strftime("%Y%m%d")),
    "ts": _of_moments(lambda moment: moment.isoformat()),
    "ts_nodash": _of_moments(lambda moment: moment.strftime("%Y%m%dT%H%M%S")),
    "ts_nodash_with_tz": _of_moments(lambda moment: moment.isoformat().replace("-", "").replace(":", "")),
}


def is_template(value: object) -> bool:
    """Tell whether ``value`` is text with Jinja in it."""
    return isinstance(value, str) and any(mark in value for mark in _MARKS)


def has_template(value: object) -> bool:
    """Tell whether ``value``, or anything inside it, is a template."""
    if isinstance(value, Mapping):
        return any(has_template(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(has_template(item) for item in value)
    return is_template(value)


def without_templates(value: Any) -> Any:  # noqa: ANN401  any JSON value
    """Return ``value`` without what is not known before rendering: entries of mappings, and lists with a template."""
    if isinstance(value, Mapping):
        return {key: without_templates(item) for key, item in value.items() if not is_template(item)}
    if isinstance(value, list):
        return [] if has_template(value) else value
    return value


def render(value: Any, context: Mapping[str, Any], path: str = "") -> Any:  # noqa: ANN401  any JSON value
    """Return ``value`` with every string in its dicts and lists rendered; keys and other values stay as they are.

    A rendered value is always text: :func:`coerce` gives it its type. ``path`` names the value in errors.

    :raises TemplateError: if a variable is undefined, the template is malformed, or an expression fails.
    """
    if isinstance(value, Mapping):
        return {key: render(item, context, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [render(item, context, f"{path}[{index}]") for index, item in enumerate(value)]
    return _render_text(value, context, path) if is_template(value) else value


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> nodes.Template:
    """Parse a template once for all that is asked of it; nobody changes the tree."""
    return _ENVIRONMENT.parse(text)


def check_syntax(text: str, path: str = "") -> None:
    """Parse the template ``text`` without rendering it.

    :raises TemplateError: if it is not valid Jinja, or uses a filter or a test that nobody defines.
    """
    try:
        variables_of(text)
    except TemplateSyntaxError as error:
        raise _syntax_error(text, path, error) from error


@functools.lru_cache(maxsize=1024)
def variables_of(text: str) -> frozenset[str]:
    """Return the names of the variables that the template ``text`` reads."""
    return frozenset(meta.find_undeclared_variables(_parse(text)))


def attributes_of(text: str, variable: str) -> set[str]:
    """Return the attributes of ``variable`` that the template ``text`` reads, as ``x.name`` or ``x["name"]``."""
    tree = _parse(text)
    dotted = {node.attr for node in tree.find_all(nodes.Getattr) if _is_named(node.node, variable)}
    keyed = {
        node.arg.value
        for node in tree.find_all(nodes.Getitem)
        if _is_named(node.node, variable) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str)
    }
    called = {
        node.node.attr
        for node in tree.find_all(nodes.Call)
        if isinstance(node.node, nodes.Getattr) and _is_named(node.node.node, variable)
    }
    return dotted - called | keyed


def _is_named(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


def _syntax_error(text: str, path: str, error: TemplateSyntaxError) -> TemplateError:
    where = path or repr(text)
    return TemplateError(f"{where}: malformed template, line {error.lineno}", str(error.message), f"It reads {text!r}.")


def _render_text(text: str, context: Mapping[str, Any], path: str) -> str:
    where = path or repr(text)
    try:
        return _ENVIRONMENT.from_string(text).render(context)
    except TemplateSyntaxError as error:
        raise _syntax_error(text, path, error) from error
    except UndefinedError as error:
        known = ", ".join(sorted(str(name) for name in context))
        todo = f"The template is {text!r}. Defined here: {known}." if known else f"The template is {text!r}."
        raise TemplateError(f"{where}: {error.message}", todo=todo) from error
    except TemplateError:
        raise
    except Exception as error:
        raise TemplateError(
            f"{where}: template failed", f"{type(error).__name__}: {error}", f"It is {text!r}."
        ) from error


def coerce(value: Any, type_name: str, path: str = "") -> int | float | bool | str:  # noqa: ANN401  any JSON value
    """Return ``value``, often rendered text, as ``int``, ``float``, ``bool`` or ``str``.

    Only what reads as that type without doubt is accepted: decimal digits for an integer (``01`` is 1), a finite
    decimal or exponent form for a float, true/false in any case for a boolean.

    :raises TemplateError: if the value does not read as that type.
    """
    text = value.strip() if isinstance(value, str) else value
    result = _COERCIONS[type_name](text)
    if result is None:
        nothing = text is None or text in ("", "None")
        why = "the template rendered to nothing" if nothing else f"a value of type {type_name} is needed"
        raise TemplateError(f"{path or 'value'}: {value!r} is not {_NOUNS[type_name]}", why)
    return value if type_name == "str" and isinstance(value, str) else result


def _to_int(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else None


def _to_float(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float) or (isinstance(value, str) and _FLOAT.fullmatch(value)):
        number = float(value)
        return number if math.isfinite(number) else None
    return None


def _to_bool(value: object) -> bool | None:
    return value if isinstance(value, bool) else _BOOLEANS.get(value.lower()) if isinstance(value, str) else None


def _to_str(value: object) -> str | None:
    return str(value) if isinstance(value, str | int | float) else None


_COERCIONS: dict[str, Callable[[object], int | float | bool | str | None]] = {
    "int": _to_int,
    "float": _to_float,
    "bool": _to_bool,
    "str": _to_str,
}
_NOUNS = {"int": "an integer", "float": "a finite number", "bool": "true or false", "str": "text or a number"}
