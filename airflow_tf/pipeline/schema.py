"""The JSON Schema of the declaration, by which editors complete and check what is typed."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Any

import yaml
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from airflow_tf.core.session_config.parsing import config_descriptor
from airflow_tf.core.session_config.roles import ROLE_KEYS
from airflow_tf.pipeline.models import Declaration, StageSpec
from airflow_tf.pipeline.stages import KEY

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SECTIONS = [name for name in StageSpec.model_fields if name in Declaration.model_fields]
_LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")
_TEMPLATE = {"type": "string", "pattern": r"\{[{%#]"}
_NUMBERS = {FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE}
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
}


def declaration_schema() -> dict[str, Any]:
    """Return the schema of a whole ``*.tf.yaml``, the fields of the session config included.

    It allows what the checks of a declaration allow, and refuses unknown keys, wrong types and wrong choices. What
    depends on several keys, or on the files beside it, only ``airflow tf validate`` knows.
    """
    schema = Declaration.model_json_schema()
    definitions = schema["$defs"]
    for name, part in {"Declaration": schema, **definitions}.items():
        for key, text in meanings()[name].items():
            part["properties"][key]["description"] = _LINK.sub(r"\1", text)
    inputs = schema["properties"]["inputs"]
    inputs["additionalProperties"] = {"anyOf": [{"type": "string", "minLength": 1}, inputs["additionalProperties"]]}
    _allow_single_callbacks(definitions)
    fields = _fields(config_descriptor(), definitions)
    part = {"type": "object", "additionalProperties": False, "properties": fields}
    definitions["TrainSpec"]["properties"]["session_config"] |= {
        "additionalProperties": False,
        "properties": fields | dict.fromkeys(ROLE_KEYS, part),
    }
    _allow_stages(schema, definitions)
    return {"$schema": DRAFT, **_without_titles(schema), "title": "airflow_tf declaration"}


def _allow_stages(schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Require only of a declaration without stages what a stage may add to the top, or leave to it."""
    required = {name: _take_required(schema["properties"][name], definitions, {}) for name in _SECTIONS}
    schema["required"] = [key for key in schema["required"] if key not in _SECTIONS]
    properties = {name: part for name, part in required.items() if part}
    schema["if"], schema["else"] = {"required": [KEY]}, {"required": ["train"], "properties": properties}


def _take_required(part: dict[str, Any], definitions: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Take what is required out of a model in the schema, and return it as a schema of its own."""
    if isinstance(part.get("additionalProperties"), dict):
        found = _take_required(part["additionalProperties"], definitions, known)
        return {"additionalProperties": found} if found else {}
    models = [each["$ref"].rpartition("/")[2] for each in part.get("anyOf", [part]) if "$ref" in each]
    if len(models) != 1 or models[0] not in meanings():
        return {}
    if models[0] not in known:
        model = definitions[models[0]]
        nested = {key: _take_required(each, definitions, known) for key, each in model["properties"].items()}
        found = {
            "required": model.pop("required", []),
            "properties": {key: each for key, each in nested.items() if each},
        }
        known[models[0]] = {key: each for key, each in found.items() if each}
    return dict(known[models[0]])


def _allow_single_callbacks(definitions: dict[str, Any]) -> None:
    """Allow a callback by its name alone, and one without a list around it."""
    one = [{"type": "string", "minLength": 1}, {"$ref": "#/$defs/CallbackSpec"}]
    for part in definitions["CallbacksSpec"]["properties"].values():
        del part["type"], part["items"]
        part["anyOf"] = [*one, {"type": "array", "items": {"anyOf": one}}]


@cache
def meanings() -> dict[str, dict[str, str]]:
    """Return what each key means, in Markdown, by the name of its model."""
    text = resources.files(__package__).joinpath("meanings.yaml").read_text()
    return {model: dict(keys) for model, keys in yaml.safe_load(text).items()}


def _fields(message: Descriptor, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return field name -> schema; messages in it get definitions of their own, once."""
    return {field.name: _field(field, definitions) for field in message.fields}


def _field(field: FieldDescriptor, definitions: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        return {"type": "object", "additionalProperties": _single(value, definitions)}
    if field.is_repeated:
        return {"anyOf": [{"type": "array", "items": _single(field, definitions)}, _TEMPLATE]}
    return _single(field, definitions)


def _single(field: FieldDescriptor, definitions: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None:
        return _message(field.message_type, definitions)
    if field.enum_type is not None:
        names = [value.name for value in field.enum_type.values]
        return {"anyOf": [{"enum": names}, {"type": "integer"}, _TEMPLATE]}
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return {"anyOf": [{"type": "boolean"}, _TEMPLATE]}
    if field.cpp_type in _INTEGERS:
        return {"anyOf": [{"type": "integer"}, _TEMPLATE]}
    if field.cpp_type in _NUMBERS:
        return {"anyOf": [{"type": "number"}, _TEMPLATE]}
    return {"type": "string"}


def _message(message: Descriptor, definitions: dict[str, Any]) -> dict[str, Any]:
    if message.full_name not in definitions:
        definitions[message.full_name] = made = {"type": "object", "additionalProperties": False}
        made["properties"] = _fields(message, definitions)
    return {"$ref": f"#/$defs/{message.full_name}"}


def _without_titles(schema: Any) -> Any:  # noqa: ANN401  any part of a schema
    """Drop the titles that pydantic makes of the keys' names: an editor would show each name twice."""
    if isinstance(schema, dict):
        return {
            key: _without_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    return [_without_titles(item) for item in schema] if isinstance(schema, list) else schema
