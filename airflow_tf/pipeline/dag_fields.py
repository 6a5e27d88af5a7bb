"""Field types of which Airflow itself is the judge: schedules and parameters."""

from __future__ import annotations

from typing import Annotated, Any

from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowException, ParamValidationError
from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]  # has no type information
from pydantic import AfterValidator

from airflow_tf.pipeline.errors import suggest
from airflow_tf.pipeline.fields import Text, name, refuse

_PARAM_KEYS = (
    "default", "description", "description_md", "enum", "examples", "exclusiveMaximum", "exclusiveMinimum", "format",
    "items", "maximum", "maxItems", "maxLength", "minimum", "minItems", "minLength", "multipleOf", "pattern",
    "properties", "required", "section", "title", "type", "values_display",
)  # fmt: skip


def to_param(value: Any) -> Param:  # noqa: ANN401  a default, or a mapping
    """Return Airflow's Param for a bare default or for a mapping of ``default`` and JSON Schema keywords."""
    return Param(**value) if isinstance(value, dict) else Param(value)


def _param(value: Any) -> Any:  # noqa: ANN401  returned unchanged
    for key in value if isinstance(value, dict) else ():
        if key not in _PARAM_KEYS:
            todo = f"{suggest(key, _PARAM_KEYS)} Allowed here: {', '.join(_PARAM_KEYS)}.".strip()
            raise refuse(f"unknown key {key!r}", "a param is its default, or a mapping with these keys", todo)
    try:
        param = to_param(value)
        if param.has_value:
            param.resolve()  # checks the schema as well
        else:
            Draft202012Validator.check_schema(param.schema)
    except (ParamValidationError, SchemaError) as error:
        todo = "Give a default that its type and limits allow."
        raise refuse("the param contradicts itself", str(error).splitlines()[0], todo) from error
    return value


def _schedule(value: str) -> str:
    try:
        DAG("check", schedule=value).timetable.validate()
    except (AirflowException, ValueError) as error:
        todo = "Write a cron expression or a preset such as @daily, or null."
        raise refuse(f"{value!r} is not a schedule", str(error), todo) from error
    return value


Schedule = Annotated[Text, AfterValidator(_schedule)]
ParamName = Annotated[str, name(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a param")]
ParamValue = Annotated[Any, AfterValidator(_param)]
