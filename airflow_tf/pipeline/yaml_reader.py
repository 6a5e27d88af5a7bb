"""Read a declaration's YAML into plain values, and remember where each of them stands in the file.

The subset is what a declaration needs: one document, text keys, the plain scalar types, anchors and aliases. What
YAML 1.1 reads differently from what people mean (``010`` is 8, ``1:30`` is 90) is refused with the remedy. Size,
depth and the number of values after expansion of aliases are limited, since files may come from anybody.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from airflow_tf.pipeline.errors import DataPath, InvalidDeclarationError, Position, Problem

MAX_BYTES = 2**20
MAX_DEPTH = 32
MAX_VALUES = 20_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser, where PyYAML was built with it
_TAG = "tag:yaml.org,2002:"
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_EXPONENT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+")  # text in YAML 1.1, a number to everybody else
_BOOLEANS = yaml.SafeLoader.bool_values


@dataclass(frozen=True, slots=True)
class Document:
    """A read file: its text, its values, and the position of every key and list item by path."""

    file: Path
    text: str
    data: dict[str, Any]
    positions: dict[DataPath, Position] = field(default_factory=dict)

    def locate(self, path: DataPath) -> Position:
        """Return the position of ``path``, or of the nearest key above it that the file has."""
        while path and path not in self.positions:
            alone = tuple(part for part in path if part != 0)  # a list of one may be written without its brackets
            path = alone if alone in self.positions else path[:-1]
        return self.positions.get(path, Position(1, 1))


def read_yaml(file: Path) -> Document:
    """Read the declaration ``file``.

    :raises InvalidDeclarationError: with every problem found, if it is not UTF-8 text with one plain YAML mapping.
    """
    text = _read_text(file)
    try:
        problem = _check_events(text)
        if problem:
            raise InvalidDeclarationError.of(file, [problem])
        root: Any = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        raise InvalidDeclarationError.of(file, [_syntax_problem(text, error)]) from error
    except yaml.reader.ReaderError as error:
        position = _position_at(text.encode()[: error.position].decode(errors="replace"))
        what = "a control character is not allowed in YAML"
        raise InvalidDeclarationError.of(file, [Problem(position, (), what, todo="Remove it.")]) from error
    builder = _Builder()
    data = builder.build(root, ())
    if not builder.problems and not isinstance(data, dict):
        what = f"the file holds {_noun(root)}, not keys with values"
        builder.problems.append(Problem(_position(root), (), what, todo="Start it with 'dag_id: name'."))
    if builder.problems:
        raise InvalidDeclarationError.of(file, builder.problems)
    return Document(file=file, text=text, data=data, positions=builder.positions)


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        problem = Problem(Position(1, 1), (), what, todo="Give the path of a declaration (*.tf.yaml).")
        raise InvalidDeclarationError.of(file, [problem]) from error
    start = Position(1, 1)
    if len(raw) > MAX_BYTES:
        problem = Problem(start, (), f"larger than {MAX_BYTES} bytes", todo="A declaration is a page of text.")
    elif raw.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in raw[:2]:  # with and without a byte order mark
        problem = Problem(start, (), "the text is UTF-16", todo="Save it as UTF-8.")
    else:
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            position = _position_at(raw[: error.start].decode())
            problem = Problem(position, (), f"byte {raw[error.start]:#04x} is not UTF-8", todo="Save it as UTF-8.")
    raise InvalidDeclarationError.of(file, [problem])


def _check_events(text: str) -> Problem | None:
    """Check, before anything is built, that the text is one document of bounded depth."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                return Problem(
                    _position(event), (), "a second YAML document begins", todo="Write one file for each DAG."
                )
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                return Problem(_position(event), (), f"nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return None if documents else Problem(Position(1, 1), (), "the file is empty", todo="Start it with 'dag_id: name'.")


def _syntax_problem(text: str, error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return Problem(Position(1, 1), (), f"not YAML: {error}")
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        position = Position(mark.line + 1, line.index("\t") + 1)
        return Problem(position, (), "a tab indents the line", "YAML allows spaces only", "Replace the tabs by spaces.")
    why = f"{error.context}" if error.context else ""
    return Problem(Position(mark.line + 1, mark.column + 1), (), f"not YAML: {error.problem}", why)


def _position(node: Any) -> Position:  # noqa: ANN401  a node or an event
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


def _position_at(before: str) -> Position:
    """Return the position that follows the text ``before``."""
    return Position(before.count("\n") + 1, len(before) - before.rfind("\n"))


def _noun(node: Any) -> str:  # noqa: ANN401  a node; its class attribute "id" is missing from the type stubs
    return {"sequence": "a list", "mapping": "keys"}.get(node.id, "a single value")


class _Builder:
    """Turns composed nodes into plain values; gathers problems instead of stopping at the first."""

    def __init__(self) -> None:
        self.positions: dict[DataPath, Position] = {}
        self.problems: list[Problem] = []
        self._count = 0
        self._open: set[int] = set()

    def build(self, node: yaml.Node, path: DataPath) -> Any:  # noqa: ANN401  any YAML value
        self._count += 1
        if self._count > MAX_VALUES:
            if self._count == MAX_VALUES + 1:
                self._refuse(node, path, f"more than {MAX_VALUES} values", "aliases count each time they are used")
            return None
        if id(node) in self._open:
            return self._refuse(node, path, "the value contains itself through an alias")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        expected = _TAG + ("map" if isinstance(node, yaml.MappingNode) else "seq")
        if node.tag != expected:
            return self._refuse(node, path, f"unknown tag {_shorten(node.tag)}", todo="Write the value without a tag.")
        self._open.add(id(node))
        try:
            return self._mapping(node, path) if isinstance(node, yaml.MappingNode) else self._list(node, path)
        finally:
            self._open.discard(id(node))

    def _refuse(self, node: yaml.Node, path: DataPath, what: str, why: str = "", todo: str = "") -> None:
        self.problems.append(Problem(_position(node), path, what, why, todo))

    def _list(self, node: yaml.Node, path: DataPath) -> list[Any]:
        values = []
        for index, item in enumerate(node.value):
            self.positions[(*path, index)] = _position(item)
            values.append(self.build(item, (*path, index)))
        return values

    def _mapping(self, node: yaml.Node, path: DataPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, key_node, value_node in self._keys(node, path):
            here = (*path, key)
            if key in values:
                first = self.positions[here].line
                self._refuse(key_node, here, "repeated key", f"it is already in line {first}", "Keep one of the two.")
                continue
            self.positions[here] = _position(key_node)
            values[key] = self.build(value_node, here)
        return values

    def _keys(self, node: yaml.Node, path: DataPath) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(key_node, path, f"a key is {_noun(key_node)}", todo="Use plain text as key.")
            elif key_node.tag == _TAG + "merge":
                self._refuse(key_node, path, "merge keys (<<) are not supported", todo="Write the keys out.")
            elif key_node.tag != _TAG + "str":
                why = f"YAML reads it as {_shorten(key_node.tag)}"
                self._refuse(key_node, path, f"the key {key_node.value!r} is not text", why, "Put it in quotes.")
            else:
                yield key_node.value, key_node, value_node

    def _scalar(self, node: yaml.ScalarNode, path: DataPath) -> Any:  # noqa: ANN401  any YAML scalar
        kind = node.tag.removeprefix(_TAG)
        value: str = node.value
        if kind == "null":
            return None
        if kind == "bool" and value.lower() in _BOOLEANS:
            return _BOOLEANS[value.lower()]
        if kind in {"int", "float"} or (kind == "str" and not node.style and _EXPONENT.fullmatch(value)):
            return self._number(node, kind, path)
        if kind in {"str", "timestamp", "value"}:
            return value
        return self._refuse(node, path, f"unknown tag {_shorten(node.tag)}", todo="Write the value without a tag.")

    def _number(self, node: yaml.ScalarNode, kind: str, path: DataPath) -> float | None:
        text: str = node.value
        if kind == "int" and _DECIMAL.fullmatch(text):
            return int(text)
        if kind != "int" and _FLOAT.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
        what = f"{text} is not a plain decimal number"
        self._refuse(node, path, what, todo="Write its digits without leading zeros, or put it in quotes as text.")
        return None


def _shorten(tag: str) -> str:
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag
