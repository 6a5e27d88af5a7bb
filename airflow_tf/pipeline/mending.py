"""A broken declaration with its broken keys taken out, so that the rest can be judged in the same go."""

from __future__ import annotations

import copy
from typing import Any

from pydantic import ValidationError

from airflow_tf.pipeline.errors import DataPath

_STAND_INS = {
    "dag_id": "placeholder",
    "entrypoint": "placeholder:main",
    "metric": "placeholder",
    "uri": "file:///placeholder",
    "at_least": 1,
}
"""Values for the keys that a declaration must have."""


def mend(data: dict[str, Any], error: ValidationError) -> tuple[dict[str, Any], list[DataPath]]:
    """Return a copy of ``data`` without the keys that ``error`` is about, and these keys."""
    mended = copy.deepcopy(data)
    broken = {_key_of(data, details["loc"], is_missing=details["type"] == "missing") for details in error.errors()}
    for path in sorted(broken, key=len):
        _replace(mended, path)
    return mended, sorted(broken, key=str)


def _key_of(data: dict[str, Any], location: DataPath, *, is_missing: bool) -> DataPath:
    """Return the nearest key of a mapping to an error's location, which may go on into types and lists."""
    value: Any = data
    path: list[str | int] = []
    for part in location:
        if not isinstance(value, dict) or part not in value:
            if is_missing and isinstance(value, dict):
                path.append(part)
            break
        path.append(part)
        value = value[part]
    return tuple(path)


def _replace(data: dict[str, Any], path: DataPath) -> None:
    *parents, name = path or ("",)
    for part in parents:
        data = data.get(str(part), {})
    if name in _STAND_INS:
        data[str(name)] = _STAND_INS[str(name)]
    elif name in {"grid", "trials"}:
        data.pop("grid", None)
        data["trials"] = [{}]
    elif name == "train":
        data["train"] = {"entrypoint": _STAND_INS["entrypoint"]}
    else:
        data.pop(str(name), None)
