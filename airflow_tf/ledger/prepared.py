"""Statements that are turned into a driver's text once, and run by the driver itself.

To look at a statement anew for every run costs SQLAlchemy more than a database needs for it, and claims of devices wait
for each other meanwhile. See docs/adr/0014.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import Any, Protocol

_PARAMETER = re.compile(r"(?<!:):(\w+)")


class Cursor(Protocol):
    """What a driver returns for a statement."""

    @property
    def description(self) -> Any:  # noqa: ANN401 (the driver's)
        """A sequence for each column, its name first; None of a statement that gives no rows."""

    def fetchall(self) -> list[Any]:
        """Return all rows."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one kind of database and its driver are spoken to.

    :param parameter: how a parameter stands in the text.
    :param rows: the table of several arrays of the same length, from (column, parameter, SQL type) of each.
    :param array: an array as the driver takes it.
    """

    name: str
    parameter: Callable[[str], str]
    rows: Callable[[tuple[tuple[str, str, str], ...]], str]
    array: Callable[[list[Any]], Any]


def _joined(columns: tuple[tuple[str, str, str], ...]) -> str:
    names = ", ".join(f"{column}s.value AS {column}" for column, _, _ in columns)
    (first, parameter, _), *others = columns
    joins = "".join(f" JOIN json_each(:{each}) AS {name}s ON {name}s.key = {first}s.key" for name, each, _ in others)
    return f"(SELECT {names} FROM json_each(:{parameter}) AS {first}s{joins}) AS given"  # noqa: S608 (names of ours)


def _unnested(columns: tuple[tuple[str, str, str], ...]) -> str:
    arrays = ", ".join(f"CAST(:{parameter} AS {kind}[])" for _, parameter, kind in columns)
    return f"unnest({arrays}) AS given ({', '.join(column for column, _, _ in columns)})"


def psycopg_parameter(name: str) -> str:
    """Return a parameter as psycopg takes it."""
    return f"%({name})s"


SQLITE = Dialect("sqlite", ":{}".format, _joined, json.dumps)
POSTGRESQL = Dialect("postgresql", psycopg_parameter, _unnested, list)


@dataclass(frozen=True, slots=True)
class Step:
    """A statement and the values of its parameters."""

    statement: Prepared
    values: Mapping[str, Any]

    def put(self, dialect: Dialect, clock: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Return the driver's text, and its parameters, the clock's among them, as the driver takes them."""
        statement, values = self.statement, {**clock, **self.values}
        values |= {name: dialect.array(values[name]) for _, name, _ in statement.columns}
        return statement.text_for(dialect), values


@dataclass(frozen=True)
class Prepared:
    """A statement with ``:parameters``; ``{given}`` is the rows of :attr:`columns`.

    ``:now``, ``:epoch`` and ``:at`` (wall time as text) are those of the transaction's clock.

    :param columns: name, parameter and SQL type of each array that is given as a column.
    """

    text: str
    columns: tuple[tuple[str, str, str], ...] = ()
    _texts: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    _makers: list[Callable[..., Any]] = field(default_factory=list, repr=False, compare=False)

    def text_for(self, dialect: Dialect) -> str:
        """Return the driver's text."""
        text = self._texts.get(dialect.name)
        if text is None:
            given = dialect.rows(self.columns) if self.columns else ""
            text = _PARAMETER.sub(lambda found: dialect.parameter(found[1]), self.text.format(given=given))
            self._texts[dialect.name] = text
        return text

    def given(self, **values: object) -> Step:
        """Return the statement with values for its parameters, but for those that the clock gives."""
        return Step(self, values)

    def rows_of(self, cursor: Cursor) -> list[Any]:
        """Return the rows found, as objects with its columns; nothing of a statement that gives none."""
        if cursor.description is None:
            return []
        if not self._makers:
            names = [column[0] for column in cursor.description]
            self._makers.append(make_dataclass("Found", names, frozen=True, slots=True))
        return [self._makers[0](*row) for row in cursor.fetchall()]
