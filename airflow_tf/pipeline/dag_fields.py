"""Field types of which Airflow itself is the judge: schedules and parameters."""

from __future__ import annotations

import functools
import json
from datetime import UTC, datetime
from typing import Annotated, Any

from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowException, ParamValidationError
from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]  # has no type information
from pydantic import AfterValidator, BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from airflow_tf.core.templates import is_template
from airflow_tf.pipeline.errors import suggest
from airflow_tf.pipeline.fields import name, refuse
from airflow_tf.pipeline.timetables import TIMETABLE, to_assets, to_timetable

_PARAM_KEYS = (
    "default", "description", "description_md", "enum", "examples", "exclusiveMaximum", "exclusiveMinimum", "format",
    "items", "maximum", "maxItems", "maxLength", "minimum", "minItems", "minLength", "multipleOf", "pattern",
    "properties", "required", "section", "title", "type", "values_display",
)  # fmt: skip


def to_param(value: Any) -> Param:  # noqa: ANN401  a default, or a mapping
    """Return Airflow's Param for a bare default or for a mapping of ``default`` and JSON Schema keywords.

    A bare number or boolean takes only its kind: a run triggered with anything else would fail when it trains. A bare
    text takes any value, since Airflow's form sends null for an empty text.
    """
    if isinstance(value, dict):
        return Param(**value)
    if isinstance(value, bool):
        return Param(value, type="boolean")
    return Param(value, type="number") if isinstance(value, int | float) else Param(value)


def _param(value: Any) -> Any:  # noqa: ANN401  returned unchanged
    for key in value if isinstance(value, dict) else ():
        if key not in _PARAM_KEYS:
            todo = f"{suggest(key, _PARAM_KEYS)} Allowed here: {', '.join(_PARAM_KEYS)}.".strip()
            raise refuse(f"unknown key {key!r}", "a param is its default, or a mapping with these keys", todo)
    if why := _contradiction(json.dumps(value)):
        raise refuse("the param contradicts itself", why, "Give a default that its type and limits allow.")
    return value


@functools.lru_cache(maxsize=1024)
def _contradiction(text: str) -> str:
    """Return what is wrong with a param, as JSON text; DAGs of one folder often have the same ones."""
    try:
        param = to_param(json.loads(text))
        if param.has_value:
            param.resolve()  # checks the schema as well
        else:
            Draft202012Validator.check_schema(param.schema)
    except (ParamValidationError, SchemaError) as error:
        return str(error).splitlines()[0]
    return ""


def _schedule(value: Any) -> Any:  # noqa: ANN401  any YAML value, returned unchanged
    """Check a schedule with Airflow's own classes: text or a mapping for a timetable, a list for assets."""
    if value is None:
        return value
    todo = "Write a cron expression, a preset such as @daily, a list of asset URIs, {timetable: name, …}, or null."
    if is_template(value) or not isinstance(value, str | list | dict) or not value:
        why = "it is read when the DAG is parsed, before any run exists" if is_template(value) else ""
        raise refuse(f"{value!r} is not a schedule", why, todo)
    try:
        DAG("check", schedule=to_schedule(value)).timetable.validate()
    except PydanticCustomError:
        raise
    except (AirflowException, ValueError, TypeError, AttributeError) as error:
        raise refuse(f"{value!r} is not a schedule", str(error), todo) from error
    return value


def to_schedule(value: str | list[str] | dict[str, Any] | None) -> Any:  # noqa: ANN401  Airflow's union of schedules
    """Return what Airflow takes as schedule."""
    if isinstance(value, dict):
        return to_timetable(value)
    return to_assets(value) if isinstance(value, list) else value


def _start_date(value: str) -> datetime:
    try:
        found = datetime.fromisoformat(value)
    except (ValueError, TypeError) as error:
        raise refuse(
            f"{value!r} is not a date", str(error), "Write it like 2026-03-01 or 2026-03-01T06:00+01:00."
        ) from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


Schedule = Annotated[
    Any,
    BeforeValidator(_schedule),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "object", "required": [TIMETABLE], "properties": {TIMETABLE: {"type": "string"}}},
                {"type": "null"},
            ]
        }
    ),
]
StartDate = Annotated[datetime, BeforeValidator(_start_date), WithJsonSchema({"type": "string"})]
ParamName = Annotated[str, name(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a param")]
ParamValue = Annotated[Any, AfterValidator(_param)]
