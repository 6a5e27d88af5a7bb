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
from airflow_tf.pipeline.extends import KEY as EXTENDS
from airflow_tf.pipeline.models import Declaration, StageSpec
from airflow_tf.pipeline.stages import KEY, LINKS

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SECTIONS = [name for name in StageSpec.model_fields if name in Declaration.model_fields]
_LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")
_NULL = {"type": "null"}
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
    for inputs in (schema["properties"]["inputs"], definitions["StageSpec"]["properties"]["inputs"]["anyOf"][0]):
        inputs["additionalProperties"] = {"anyOf": [{"type": "string", "minLength": 1}, inputs["additionalProperties"]]}
    _allow_single_callbacks(definitions)
    _allow_what_is_laid_over(schema, definitions)
    fields = _fields(config_descriptor(), definitions)
    part = {"type": ["object", "null"], "additionalProperties": False, "properties": fields}
    definitions["TrainSpec"]["properties"]["session_config"] |= {
        "additionalProperties": False,
        "properties": fields | dict.fromkeys(ROLE_KEYS, part),
    }
    return {"$schema": DRAFT, **_without_titles(schema), "title": "airflow_tf declaration"}


def _allow_what_is_laid_over(schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Ask only of a declaration that is whole for itself what it must have, and that nothing is null that must not be.

    One that extends a file, and a stage, leave to what is below them what they do not have; null takes a key away.
    """
    strict = _loosen(schema, definitions, {})["properties"]
    # A section of the top may lack what every stage adds.
    sections = {name: strict.pop(name) for name in _SECTIONS if name in strict}
    links = {name: rule for name, rule in strict[KEY]["additionalProperties"]["properties"].items() if name in LINKS}
    strict[KEY] = {"additionalProperties": {"properties": links, "not": _NULL}}
    of_one = {"required": ["train"], "properties": sections}
    schema["if"] = {"required": [EXTENDS]}
    schema["else"] = {"required": ["dag_id"], "properties": strict, "if": {"required": [KEY]}, "else": of_one}


def _loosen(part: dict[str, Any], definitions: dict[str, Any], known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Require nothing in a part of the schema and allow null for every key; return what that took, as a schema.

    :param known: what it took of the models that it has been to.
    """
    if "$ref" in part:
        model = part["$ref"].rpartition("/")[2]
        if model not in known:
            known[model] = _loosen(definitions[model], definitions, known)
        return dict(known[model])
    strict: dict[str, Any] = {}
    for branch in part.get("anyOf", ()):
        strict |= _loosen(branch, definitions, known)
    if "required" in part:
        strict["required"] = part.pop("required")
    if "properties" in part:
        found = {key: _loosen_value(each, definitions, known) for key, each in part["properties"].items()}
        strict["properties"] = {key: each for key, each in found.items() if each}
    if isinstance(part.get("additionalProperties"), dict):
        strict["additionalProperties"] = _loosen_value(part["additionalProperties"], definitions, known)
    if isinstance(part.get("items"), dict):
        strict["items"] = _loosen(part["items"], definitions, known)
    return {keyword: rule for keyword, rule in strict.items() if rule}


def _loosen_value(
    part: dict[str, Any], definitions: dict[str, Any], known: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Loosen what a key stands for."""
    takes_null = _NULL in part.get("anyOf", ()) or not part.keys() & {"type", "anyOf", "const", "$ref"}
    strict = _loosen(part, definitions, known)
    if takes_null:
        return strict
    if "anyOf" in part:
        part["anyOf"] = [*part["anyOf"], _NULL]
    elif "const" in part:
        part["enum"] = [part.pop("const"), None]
    else:
        target = definitions[part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        types = target["type"] if isinstance(target["type"], list) else [target["type"]]
        target["type"] = list(dict.fromkeys([*types, "null"]))
        if "enum" in target:
            target["enum"] = [*target["enum"], None]
    return strict | {"not": _NULL}


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
        return {"type": ["object", "null"], "additionalProperties": _single(value, definitions)}
    if field.is_repeated:
        return {"anyOf": [{"type": "array", "items": _single(field, definitions)}, _TEMPLATE, _NULL]}
    return _single(field, definitions)


def _single(field: FieldDescriptor, definitions: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None:
        return _message(field.message_type, definitions)
    if field.enum_type is not None:
        names = [value.name for value in field.enum_type.values]
        return {"anyOf": [{"enum": names}, {"type": "integer"}, _TEMPLATE, _NULL]}
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return {"anyOf": [{"type": "boolean"}, _TEMPLATE, _NULL]}
    if field.cpp_type in _INTEGERS:
        return {"anyOf": [{"type": "integer"}, _TEMPLATE, _NULL]}
    if field.cpp_type in _NUMBERS:
        return {"anyOf": [{"type": "number"}, _TEMPLATE, _NULL]}
    return {"type": ["string", "null"]}


def _message(message: Descriptor, definitions: dict[str, Any]) -> dict[str, Any]:
    if message.full_name not in definitions:
        definitions[message.full_name] = made = {"type": ["object", "null"], "additionalProperties": False}
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
