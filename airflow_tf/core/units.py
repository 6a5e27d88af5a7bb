"""Quantities as people write them, and numbers as programs report them."""

from __future__ import annotations

import math
import re

from airflow_tf.core.errors import TemplateError

_STEP = 1024
_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_BYTES |= {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SECONDS = {"": 1.0, "S": 1.0, "MS": 0.001, "M": 60.0, "MIN": 60.0, "H": 3600.0, "D": 86400.0}
_WHOLE_PERCENT = 100
_ROUNDING_PERCENT = 1e-9  # 0.29 * 100 is 28.999…
_PERCENT = re.compile(r"^\s*(\d{1,3})\s*%?\s*$")
_WHOLE = re.compile(r"^\s*[+-]?\d+\s*$")
_QUANTITY = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*$")


def is_finite(number: float) -> bool:
    """Tell whether a number is one that a float can hold: no NaN, no infinity, no whole number beyond every float."""
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def parse_bytes(value: str | float) -> int:
    """Return a size in bytes from a number or text like ``10GiB``; a bare ``G`` is 2**30.

    :raises TemplateError: if the text is not a size.
    """
    return int(_parse(value, _BYTES, "size", "10GiB, 512MiB or 1000000"))


def parse_seconds(value: str | float) -> float:
    """Return a duration in seconds from a number or text like ``90s``, ``5m``, ``2h``.

    :raises TemplateError: if the text is not a duration.
    """
    return _parse(value, _SECONDS, "duration", "30, 90s, 5m or 2h")


def parse_percent(value: float | str) -> int:
    """Return a percentage of 0 to 100 from a whole number or text like ``20%``.

    :raises TemplateError: if it is not one.
    """
    match = None if isinstance(value, bool) else _PERCENT.match(str(value))
    if match is None or int(match.group(1)) > _WHOLE_PERCENT:
        raise TemplateError(f"{value!r} is not a percentage", todo="Give 0 to 100, like 20 or 20%.")
    return int(match.group(1))


def parse_share(value: float | str) -> int:
    """Return a part like ``0.5`` in whole percent, rounded down: three thirds must fit.

    :raises TemplateError: if it is not a part of at least 0.01 and at most 1.
    """
    match = None if isinstance(value, bool) else _QUANTITY.match(str(value))
    percent = int(float(match.group(1)) * _WHOLE_PERCENT + _ROUNDING_PERCENT) if match and not match.group(2) else 0
    if not 1 <= percent <= _WHOLE_PERCENT:
        raise TemplateError(f"{value!r} is not a part of a device", todo="Give 0.01 to 1, like 0.5.")
    return percent


def parse_whole(value: float | str) -> int:
    """Return a whole number from itself or its text.

    :raises TemplateError: if it is not one.
    """
    if isinstance(value, bool) or not _WHOLE.match(str(value)):
        raise TemplateError(f"{value!r} is not a whole number")
    return int(value)


def _parse(value: str | float, table: dict[str, float] | dict[str, int], noun: str, examples: str) -> float:
    match = None if isinstance(value, bool) else _QUANTITY.match(str(value))
    factor = table.get(match.group(2).upper()) if match else None
    if match is None or factor is None:
        raise TemplateError(f"{value!r} is not a {noun}", todo=f"Write it like {examples}.")
    return float(match.group(1)) * factor


def format_bytes(count: float) -> str:
    """Return ``count`` bytes with a binary unit, one decimal from KiB on."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units[:-1]:
        if abs(count) < _STEP:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _STEP
    return f"{count:.1f} {units[-1]}"
