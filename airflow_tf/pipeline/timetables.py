"""Schedules by the name of a timetable: Airflow's own, or those that a plugin of the installation has registered."""

from __future__ import annotations

import datetime as dt
import inspect
import zoneinfo
from collections.abc import Callable, Mapping
from typing import Any

from airflow import sdk
from airflow.sdk import Asset, AssetOrTimeSchedule

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.units import parse_seconds
from airflow_tf.pipeline.errors import suggest
from airflow_tf.pipeline.fields import refuse

TIMETABLE, ASSETS, _CRONS = "timetable", "assets", "crons"
_UTC = "UTC"
_OF_AIRFLOW = (
    "CronDataIntervalTimetable",
    "CronTriggerTimetable",
    "DeltaDataIntervalTimetable",
    "DeltaTriggerTimetable",
    "MultipleCronTriggerTimetable",
)


def _duration(value: Any) -> dt.timedelta:  # noqa: ANN401  any YAML value
    return dt.timedelta(seconds=parse_seconds(value))


def _timezone(value: Any) -> str:  # noqa: ANN401  any YAML value
    try:
        return zoneinfo.ZoneInfo(value).key
    except (KeyError, TypeError, OSError) as error:
        raise ValueError(f"there is no time zone {value!r}") from error


_READ: Mapping[str, Callable[[Any], Any]] = {
    "delta": _duration,
    "interval": _duration,
    "run_immediately": lambda value: value if isinstance(value, bool) else _duration(value),
    "timezone": _timezone,
}
"""How arguments of Airflow's timetables are read that YAML has no type for."""


def to_timetable(value: Mapping[str, Any]) -> Any:  # noqa: ANN401  Airflow has no common class for them
    """Make the timetable of a mapping: its name, its arguments, and ``assets`` that start runs as well.

    :raises PydanticCustomError: if there is no such timetable, or it does not take the arguments.
    """
    name = value.get(TIMETABLE)
    arguments = {key: item for key, item in value.items() if key not in {TIMETABLE, ASSETS}}
    made = _make(name, arguments)
    if ASSETS not in value:
        return made
    return AssetOrTimeSchedule(timetable=made, assets=to_assets(value[ASSETS]))


def to_assets(uris: Any) -> list[Asset]:  # noqa: ANN401  any YAML value
    """Return assets by their URIs, named as publications name theirs.

    :raises PydanticCustomError: if it is no list of text.
    """
    if not isinstance(uris, list) or not uris or not all(isinstance(uri, str) for uri in uris):
        raise refuse(f"{uris!r} is no list of asset URIs", todo="Write it like [hdfs://namenode:8020/models/churn].")
    return [Asset(uri.rstrip("/")) for uri in uris]


def _make(name: Any, arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401  any YAML value
    found = _find(name)
    try:
        if name in _OF_AIRFLOW:
            arguments = {key: _READ.get(key, lambda item: item)(item) for key, item in arguments.items()}
            if "timezone" in inspect.signature(found).parameters:
                arguments = {"timezone": _UTC} | arguments
        crons = arguments.get(_CRONS, []) if name == "MultipleCronTriggerTimetable" else []
        return found(*crons, **{key: item for key, item in arguments.items() if not crons or key != _CRONS})
    except DeclarationError as error:
        raise refuse(f"{name} does not take these arguments", str(error)) from error
    except Exception as error:
        todo = f"It is {found.__name__}{inspect.signature(found)}."
        raise refuse(f"{name} does not take these arguments", str(error), todo) from error


def _find(name: Any) -> Any:  # noqa: ANN401  any YAML value
    """Return the class of this name; one that a plugin has registered may be named with or without its module."""
    if name in _OF_AIRFLOW:
        return getattr(sdk, name)
    registered = _registered()
    named = [found for path, found in registered.items() if name in {path, path.rpartition(".")[2]}]
    if len(named) == 1:
        return named[0]
    known = [*_OF_AIRFLOW, *sorted(registered)]
    if named:
        ways = ", ".join(sorted(path for path in registered if path.endswith(f".{name}")))
        raise refuse(f"there are several timetables {name!r}", todo=f"Write one of: {ways}.")
    todo = f"{suggest(name, known)} Known are {', '.join(known)}; a plugin may register others.".strip()
    raise refuse(f"there is no timetable {name!r}", todo=todo)


def _registered() -> dict[str, Any]:
    from airflow.plugins_manager import get_timetables_plugins  # noqa: PLC0415 (loads all plugins: only where asked for)

    return dict(get_timetables_plugins())
