"""Rows of CSV text as ``tf.io.decode_csv`` takes them (RFC 4180), with the position of each field; types of columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

COLUMN_TYPES = ("int32", "int64", "float32", "float64", "string")

_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_REAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity|nan)", re.IGNORECASE | re.ASCII)
_BITS = {"int32": 31, "int64": 63}
_LONGEST_SHOWN = 40
_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar", "\x01": "Hive's \\x01"}


@dataclass(frozen=True, slots=True)
class Field:
    """One field: where it begins in its line (from 1), and its text without quotes."""

    column: int
    text: str


class BadRowError(ValueError):
    """A row cannot be read."""

    def __init__(self, column: int, why: str) -> None:
        super().__init__(why)
        self.column = column


def parse_row(line: str, delimiter: str, more: Callable[[], str | None]) -> list[Field]:
    """Return the fields of a row that begins with ``line`` (without its end).

    :param more: returns the next line of a field in quotes that has not ended; None at the end of the file.
    :raises BadRowError: if quotes or line ends are where TensorFlow refuses them.
    """
    if '"' not in line:
        if "\r" in line:
            raise BadRowError(line.index("\r") + 1, "a carriage return inside the line")
        column, fields = 1, []
        for text in line.split(delimiter):
            fields.append(Field(column, text))
            column += len(text) + 1
        return fields
    fields, at = [], 0
    while True:
        field, at, line = _next_field(line, at, delimiter, more)
        fields.append(field)
        if at >= len(line):
            return fields
        at += 1  # the delimiter
        if at == len(line):
            return [*fields, Field(at + 1, "")]


def _next_field(line: str, at: int, delimiter: str, more: Callable[[], str | None]) -> tuple[Field, int, str]:
    start = at
    if line[at : at + 1] != '"':
        end = line.find(delimiter, at)
        end = len(line) if end < 0 else end
        if '"' in (text := line[at:end]):
            raise BadRowError(at + text.index('"') + 1, "a quote inside a field that is not quoted")
        return Field(start + 1, text), end, line
    text, at = "", at + 1
    while True:
        end = line.find('"', at)
        if end < 0:
            following = more()
            if following is None:
                raise BadRowError(start + 1, "a quoted field does not end")
            text, line, at = f"{text}{line[at:]}\n", following, 0
        elif line[end + 1 : end + 2] == '"':
            text, at = f'{text}{line[at:end]}"', end + 2
        else:
            break
    if line[end + 1 : end + 2] not in {"", delimiter}:
        raise BadRowError(end + 2, "text after a quoted field")
    return Field(start + 1, text + line[at:end]), end + 1, line


def why_not(text: str, kind: str) -> str:
    """Return why ``text`` is no value of column type ``kind``, empty if it is one. An empty field takes its default."""
    stripped, shown = text.strip(" "), repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")
    if kind == "string" or not text:
        return ""
    if kind in _BITS:
        if not _WHOLE.fullmatch(stripped):
            return f"{shown} is no {kind}"
        value, limit = int(stripped), 2 ** _BITS[kind]
        if -limit <= value < limit:
            return ""
        cure = "; int64 holds it" if -(2**63) <= value < 2**63 else ""
        return f"{shown} does not fit {kind}{cure}"
    if _REAL.fullmatch(stripped):
        return ""
    comma = "; a decimal comma is none for TensorFlow" if re.fullmatch(r"[+-]?\d+,\d+", stripped) else ""
    return f"{shown} is no {kind}{comma}"


def hint(line: str, delimiter: str, wanted: int) -> str:
    """Return which delimiter the line seems to have, if it is another one; empty if that is not clear."""
    for other, name in _DELIMITERS.items():
        seen = line.count(other)
        if other != delimiter and seen and seen + 1 >= min(wanted, 2) and seen >= line.count(delimiter):
            return f"; {name} seen {seen} times, is it the delimiter?"
    return ""


def inferred(fields: list[Field], known: list[str] | None) -> list[str]:
    """Return column types after one more row: ``float32`` while all values are numbers, else ``string``."""
    before = known or ["float32"] * len(fields)
    return [
        "string" if old == "string" or why_not(field.text, "float32") else "float32"
        for field, old in zip(fields, before, strict=False)
    ]
