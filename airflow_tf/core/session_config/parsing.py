"""Turn a rendered mapping into proto JSON, every value coerced by its field's type."""

from __future__ import annotations

import base64
import contextlib
import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from airflow_tf.core.descriptors import message_class
from airflow_tf.core.session_config.types import Problem

MAX_DEPTH = 32  # AttrValue may hold itself, and a YAML anchor may be a cycle

_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_INT32 = (-(2**31), 2**31 - 1)
_INT64 = (-(2**63), 2**63 - 1)
_UINT32 = (0, 2**32 - 1)
_UINT64 = (0, 2**64 - 1)


def config_descriptor() -> Descriptor:
    """Return the descriptor of ``tensorflow.ConfigProto``."""
    descriptor: Descriptor = message_class(__package__, "config.fds", "tensorflow.ConfigProto").DESCRIPTOR
    return descriptor


class _ValueError(Exception):
    """A leaf that does not fit its field: reason and advice."""

    def __init__(self, why: str, todo: str = "") -> None:
        super().__init__(why, todo)
        self.why, self.todo = why, todo


class Parser:
    """Parses one session config and collects every problem instead of stopping at the first."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def parse(self, value: Any) -> dict[str, Any]:  # noqa: ANN401 - judging it is the task
        """Return the proto JSON of ``value``; what is wrong is in :attr:`problems`."""
        if _is_none(value):
            return {}
        return self._message(config_descriptor(), value, "", 0)

    def _message(self, descriptor: Descriptor, value: Any, path: str, depth: int) -> dict[str, Any]:  # noqa: ANN401
        if not isinstance(value, Mapping):
            todo = "A template must render the fields, not the mapping as text." if isinstance(value, str) else ""
            self._problem(path, f"must be a mapping of {descriptor.name} fields, not {_show(value)}", todo)
            return {}
        if depth > MAX_DEPTH:
            self._problem(
                path, f"is nested more than {MAX_DEPTH} levels deep", "Remove the anchor that refers to itself."
            )
            return {}
        names = {field.name: field for field in descriptor.fields}
        names |= {field.json_name: field for field in descriptor.fields}
        result: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        for key, item in value.items():
            field = names.get(key) if isinstance(key, str) else None
            if field is None:
                self._unknown(descriptor, key, item, path)
            elif field.name in spelled:
                first, where = spelled[field.name], _join(path, field.name)
                self._problem(where, f"is given twice, as {first!r} and as {key!r}", "Keep one of them.")
            else:
                spelled[field.name] = key
                self._set(result, field, item, _join(path, field.name), depth)
        self._check_oneofs(descriptor, result, path)
        return result

    def _set(self, result: dict[str, Any], field: FieldDescriptor, item: Any, path: str, depth: int) -> None:  # noqa: ANN401
        if item is None or (_is_none(item) and field.type != FieldDescriptor.TYPE_STRING):
            return
        parsed: Any
        if _is_map(field):
            parsed = self._map(field, item, path, depth)
        elif field.is_repeated:
            parsed = self._list(field, item, path, depth)
        else:
            parsed = self._single(field, item, path, depth)
            if isinstance(parsed, dict) and not parsed:
                return
        if parsed is not None:
            result[field.name] = parsed

    def _map(self, field: FieldDescriptor, value: Any, path: str, depth: int) -> dict[str, Any] | None:  # noqa: ANN401
        if not isinstance(value, Mapping):
            self._problem(path, f"must be a mapping, not {_show(value)}", "Write it like {CPU: 2}.")
            return None
        fields = field.message_type.fields_by_name
        result = {}
        for key, item in value.items():
            name = self._single(fields["key"], key, path, depth)
            parsed = None if item is None else self._single(fields["value"], item, _join(path, str(key)), depth)
            if name is not None and parsed is not None:
                result[str(name)] = parsed
        return result

    def _list(self, field: FieldDescriptor, value: Any, path: str, depth: int) -> list[Any] | None:  # noqa: ANN401
        if not isinstance(value, (list, tuple)):
            self._problem(path, f"must be a list, not {_show(value)}", f"Write it like [{_show(value)}].")
            return None
        items = [self._single(field, item, f"{path}[{i}]", depth) for i, item in enumerate(value)]
        return [item for item in items if item is not None]

    def _single(self, field: FieldDescriptor, value: Any, path: str, depth: int) -> Any:  # noqa: ANN401
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            return self._message(field.message_type, value, path, depth + 1)
        try:
            return _LEAVES[field.type](field, value)
        except _ValueError as error:
            self._problem(path, error.why, error.todo)
            return None

    def _check_oneofs(self, descriptor: Descriptor, result: dict[str, Any], path: str) -> None:
        for oneof in descriptor.oneofs:
            given = [field.name for field in oneof.fields if field.name in result]
            if len(given) > 1:
                self._problem(path, f"{' and '.join(given)} exclude each other", "Keep one of them.")

    def _unknown(self, descriptor: Descriptor, key: Any, item: Any, path: str) -> None:  # noqa: ANN401
        self.problems.append(_unknown_field(descriptor, str(key), path, nested=_has_key(item, "session_config")))

    def _problem(self, path: str, why: str, todo: str = "") -> None:
        self.problems.append(Problem(path, why, todo))


def suggest(message: str, name: str) -> Problem:
    """Return what to say of the unknown field ``name`` of ``message``, like ``tensorflow.GPUOptions``."""
    root = config_descriptor()
    descriptor = root.file.pool.FindMessageTypeByName(message)
    places = [""] if descriptor is root else sorted(_places(root, descriptor), key=lambda place: place.count("."))
    return _unknown_field(descriptor, name, places[0] if places else "")


def _unknown_field(descriptor: Descriptor, key: str, path: str, *, nested: bool = False) -> Problem:
    fields = [field.name for field in descriptor.fields]
    close = difflib.get_close_matches(key, fields, n=1)
    elsewhere = sorted(_find(config_descriptor(), key), key=lambda found: (found.count("."), found))
    allowed = f"Allowed here: {', '.join(sorted(fields))}."
    if key == "session_config" or nested:
        todo = "Give only the inner session_config block."
    elif elsewhere:
        todo = f"It belongs under session_config.{elsewhere[0].rpartition('.')[0]}.".replace(
            "session_config..", "session_config."
        )
    elif close:
        todo = f'Did you mean "{close[0]}"? {allowed}'
    else:
        todo = allowed
    return Problem(_join(path, key), f"unknown field of {descriptor.name}", todo)


def _places(within: Descriptor, wanted: Descriptor, path: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the paths of fields of the type ``wanted``, at most five levels deep."""
    for field in within.fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE and not _is_map(field) and depth < 5:  # noqa: PLR2004
            here = _join(path, field.name)
            if field.message_type.full_name == wanted.full_name:
                yield here
            yield from _places(field.message_type, wanted, here, depth + 1)


def _integer(field: FieldDescriptor, value: Any) -> int:  # noqa: ANN401
    low, high = _RANGES[field.type]
    number: int
    if isinstance(value, bool):
        raise _ValueError(f"must be an integer, not {_show(value)}")
    if isinstance(value, int):
        number = value
    elif isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        number = int(value)
    else:
        real = _to_float(value)
        if real is None or not real.is_integer():
            raise _ValueError(f"must be an integer, not {_show(value)}")
        number = int(real)
    if not low <= number <= high:
        raise _ValueError(f"{number} is outside {low}..{high}")
    return number


def _real(_field: FieldDescriptor, value: Any) -> float:  # noqa: ANN401
    number = None if isinstance(value, bool) else _to_float(value)
    if number is None:
        raise _ValueError(f"must be a finite number, not {_show(value)}")
    return number


def _boolean(_field: FieldDescriptor, value: Any) -> bool:  # noqa: ANN401
    text = value.strip().lower() if isinstance(value, str) else value
    if isinstance(text, bool):
        return text
    if text in ("true", "false"):
        return bool(text == "true")
    raise _ValueError(f"must be true or false, not {_show(value)}")


def _text(field: FieldDescriptor, value: Any) -> str:  # noqa: ANN401
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, tuple) and all(isinstance(item, int | str) for item in value):
        return ",".join(map(str, value))  # YAML has no tuples: native Jinja has made one of the text "0,1"
    todo = ""
    if isinstance(value, (list, tuple)):
        todo = f'Write one comma separated string: "{",".join(str(item) for item in value)}".'
    raise _ValueError(f"{field.name} is a string, not {_show(value)}", todo)


def _bytes(_field: FieldDescriptor, value: Any) -> str:  # noqa: ANN401
    with contextlib.suppress(ValueError):  # not base64: said below, as for any other type
        if isinstance(value, str):
            base64.b64decode(value, validate=True)
            return value
    raise _ValueError(f"must be bytes in base64, not {_show(value)}")


def _enum(field: FieldDescriptor, value: Any) -> str:  # noqa: ANN401
    values = field.enum_type.values_by_name
    choices = ", ".join(sorted(values))
    if isinstance(value, bool) or str(value) in {"True", "False"}:
        # YAML 1.1 reads OFF as false, and protobuf takes false for the value 0, which is another choice.
        raise _ValueError(
            f"{field.name} is one of {choices}, not a boolean; YAML reads a bare ON or OFF as one",
            'Quote it, like "OFF".',
        )
    if isinstance(value, str) and value in values:
        return value
    if isinstance(value, int) or (isinstance(value, str) and _INTEGER.fullmatch(value)):
        found = field.enum_type.values_by_number.get(int(value))
        if found is not None:
            return str(found.name)
    close = difflib.get_close_matches(str(value).upper(), values, n=1)
    raise _ValueError(f"{_show(value)} is none of {choices}", f'Did you mean "{close[0]}"?' if close else "")


_RANGES = {
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_UINT32: _UINT32,
    FieldDescriptor.TYPE_UINT64: _UINT64,
}

_LEAVES: dict[int, Callable[[FieldDescriptor, Any], Any]] = {
    **dict.fromkeys(_RANGES, _integer),
    FieldDescriptor.TYPE_DOUBLE: _real,
    FieldDescriptor.TYPE_FLOAT: _real,
    FieldDescriptor.TYPE_BOOL: _boolean,
    FieldDescriptor.TYPE_STRING: _text,
    FieldDescriptor.TYPE_BYTES: _bytes,
    FieldDescriptor.TYPE_ENUM: _enum,
}


def _to_float(value: Any) -> float | None:  # noqa: ANN401
    try:
        number = float(value) if isinstance(value, (int, float, str)) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _is_none(value: Any) -> bool:  # noqa: ANN401
    return value is None or (isinstance(value, str) and value.strip() in {"None", "null"})


def _is_map(field: FieldDescriptor) -> bool:
    return field.type == FieldDescriptor.TYPE_MESSAGE and bool(field.message_type.GetOptions().map_entry)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _show(value: Any) -> str:  # noqa: ANN401
    text = repr(value)
    if len(text) > 60:  # noqa: PLR2004 - a line of a message, not a limit of anything
        text = f"{text[:57]}..."
    return f"{text} ({type(value).__name__})" if not isinstance(value, (int, float, str)) else text


def _find(descriptor: Descriptor, name: str, path: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the paths at which ConfigProto has a field called ``name``, at most four levels deep."""
    for field in descriptor.fields:
        here = _join(path, field.name)
        if name in {field.name, field.json_name} and path:
            yield here
        if field.type == FieldDescriptor.TYPE_MESSAGE and depth < 3 and not _is_map(field):  # noqa: PLR2004
            yield from _find(field.message_type, name, here, depth + 1)


def _has_key(value: Any, key: str, depth: int = 0) -> bool:  # noqa: ANN401
    if not isinstance(value, Mapping) or depth > MAX_DEPTH:
        return False
    return key in value or any(_has_key(item, key, depth + 1) for item in value.values())
