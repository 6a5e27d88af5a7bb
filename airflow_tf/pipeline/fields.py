"""Field types of the declaration: what each kind of value must look like, with our own words when it does not.

Two kinds of keys. Literals decide the DAG's shape or are read by the scheduler, so a template there is refused with
the reason. ``Templated`` values are rendered when the task runs; their syntax is checked already when parsed.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.templates import check_syntax, is_template, variables_of
from airflow_tf.core.units import parse_bytes, parse_percent, parse_seconds, parse_whole
from airflow_tf.storage.base import one_text
from airflow_tf.storage.options import SCHEMES, StorageOptions
from airflow_tf.storage.registry import BACKENDS

VERSION = 1
"""Of the language: it changes when a file would mean something else than before."""

MAX_REPLICAS = 1024
RESERVED_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_CONFIG"})
RESERVED_PREFIX = "AIRFLOW_TF_"
_STATIC_VARIABLES = {"var", "conn"}
_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
REFUSED = "refused"
"""Type of the errors made by :func:`refuse`, which carry what, why and todo."""


def refuse(what: str, why: str = "", todo: str = "") -> PydanticCustomError:
    """Return an error that pydantic files under the path of the value being validated."""
    return PydanticCustomError(REFUSED, "{what}", {"what": what, "why": why, "todo": todo})


def reraise(error: DeclarationError) -> PydanticCustomError:
    """Return one of our errors as :func:`refuse` does."""
    return refuse(error.what, error.why, error.todo)


def _literal(value: object) -> object:
    if is_template(value):
        why = "this key is read when the DAG is parsed, before any run exists"
        raise refuse("a template is not allowed here", why, "Write the value itself.")
    return value


def check_templates(value: Any) -> Any:  # noqa: ANN401  any YAML value, returned unchanged
    """Check the syntax of every template in ``value``."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            check_templates(item)
    elif is_template(value):
        try:
            check_syntax(value)
        except DeclarationError as error:
            raise reraise(error) from error
    return value


def _quantity(value: object, parse: Callable[[Any], float]) -> float:
    try:
        return parse(value)
    except DeclarationError as error:
        raise reraise(error) from error


def _rendered(parse: Callable[[Any], float]) -> BeforeValidator:
    """Return a validator of a quantity that may be a template."""

    def check(value: object) -> object:
        if not is_template(value):
            _quantity(value, parse)
        return check_templates(value)

    return BeforeValidator(check)


def _duration(value: object) -> timedelta:
    seconds = _quantity(_literal(value), parse_seconds)
    try:
        return timedelta(seconds=seconds)
    except OverflowError as error:
        raise refuse(f"{value!r} is longer than any run", todo="Write it like 30, 90s, 5m or 2h.") from error


def _plain(value: object) -> object:
    if not isinstance(value, str | int | float):
        raise refuse(f"{value!r} is not text, a number, true or false", todo="Give one plain value.")
    return check_templates(value)


def name(pattern: str, noun: str) -> AfterValidator:
    """Return a validator for the names that users give to things."""
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise refuse(f"{value!r} cannot be {noun}", todo=f"It must match {pattern}.")
        return value

    return AfterValidator(check)


def _variable(value: str) -> str:
    if value in RESERVED_VARIABLES or value.startswith(RESERVED_PREFIX):
        raise refuse("this variable cannot be declared", "it is set from the run and its devices", "Remove it.")
    return value


def _entrypoint(value: str, info: ValidationInfo) -> str:
    """Return a script as an absolute path, found from the declaration's folder; ``module:function`` stays as it is."""
    if _FUNCTION.fullmatch(value):
        return value
    if (code := (info.context or {}).get("code")) is not None:
        return value if (info.context or {}).get("is_copied") else _in_code(value, code)
    script = (info.context or {}).get("folder", Path()) / value
    if not script.is_file():
        todo = "Give a script relative to this file, or module:function."
        raise refuse(f"no script {value!r}", f"there is no file {script}", todo)
    return str(script.absolute())


def _version(value: object) -> object:
    if value != VERSION or type(value) is not int:
        why = f"this airflow_tf reads version {VERSION} of the language"
        raise refuse(f"{value!r} is no known version", why, f"Write {VERSION}, or install the release that has it.")
    return value


def _in_code(value: str, code: str) -> str:
    """Check that ``code``, a folder or a zip file, has the script; where it is a template nobody knows."""
    if is_template(code):
        return value
    try:
        found = (Path(code) / value).is_file() if Path(code).is_dir() else value in zipfile.ZipFile(code).namelist()
    except (OSError, zipfile.BadZipFile):  # is told where the code is named
        return value
    if not found or ".." in Path(value).parts or Path(value).is_absolute():
        raise refuse(f"no script {value!r}", f"'train.code' {code} has none", "Give a path within it.")
    return value


def _code(value: str, info: ValidationInfo) -> str:
    """Return a folder or a zip file as an absolute path, found from the declaration's folder."""
    check_templates(value)
    if is_template(value):
        return value
    code = code_path((info.context or {}).get("folder", Path()), value)
    is_copied = (info.context or {}).get("is_copied")
    if not is_copied and not code.is_dir() and not zipfile.is_zipfile(code):
        raise refuse(f"no code {value!r}", f"{code} is no folder and no zip file", "Give one relative to this file.")
    return str(code)


def code_path(folder: Path, value: str) -> Path:
    """Return where the code is that a declaration in ``folder`` names; a template stays as it is."""
    return Path(value) if is_template(value) else (folder / value).absolute()


def check_uri(value: str) -> str:
    """Check the literal part of a storage URI, unless a template makes its beginning."""
    text = _TEMPLATE.sub("x", value)
    try:
        if not _TEMPLATE.match(value) and StorageOptions.from_uri(text).backend not in BACKENDS:
            known = ", ".join(sorted(SCHEMES))
            raise refuse(f"unknown scheme in {value!r}", todo=f"Known are: {known}.")
    except DeclarationError as error:
        raise reraise(error) from error
    return value


def _one_text(value: object) -> object:
    """Read a list of URIs, of which each is one, as one text."""
    if not isinstance(value, list):
        return value
    texts = [item for item in value if isinstance(item, str) and item]
    if not texts or len(texts) < len(value):
        raise refuse("this is no list of URIs", todo="Write each like hdfs://namenode:8020/data/day=1.")
    for text in texts:
        check_uri(check_templates(text))
    return one_text(texts)


def expand_callbacks(value: object) -> object:
    """Read ``name``, ``{call: name}`` and lists of both as a list of the latter."""
    items = value if isinstance(value, list) else [value]
    return [{"call": item} if isinstance(item, str) else item for item in items]


def _static(value: str) -> str:
    """Allow only templates that are the same for all runs: Airflow Variables and connections."""
    check_templates(value)
    changing = variables_of(value) - _STATIC_VARIABLES
    if changing:
        why = "the base must be the same for all runs; each run publishes a version folder of its own below it"
        todo = "Write it out, or use var.value.<name>."
        raise refuse(f"{', '.join(sorted(changing))} is not allowed here", why, todo)
    return value


ReadAtParse = BeforeValidator(_literal)
Version = Annotated[int, BeforeValidator(_version), WithJsonSchema({"const": VERSION})]
Text = Annotated[str, Field(min_length=1), ReadAtParse]
Templated = Annotated[str, Field(min_length=1), AfterValidator(check_templates)]
Count = Annotated[int, Field(ge=1, le=MAX_REPLICAS), ReadAtParse]
Natural = Annotated[int, Field(ge=0), ReadAtParse]
Seconds = Annotated[float, Field(ge=0), ReadAtParse]
Share = Annotated[float, Field(ge=0.01, le=1), ReadAtParse]
Size = Annotated[int | str, _rendered(parse_bytes)]
Percent = Annotated[int | str, _rendered(parse_percent)]
Span = Annotated[int | float | str, _rendered(parse_seconds)]
Rank = Annotated[int | str, _rendered(parse_whole)]
Choices = Annotated[list[Templated], Field(min_length=1)]
Duration = Annotated[timedelta, BeforeValidator(_duration), WithJsonSchema({"type": ["string", "number"]})]
Plain = Annotated[Any, AfterValidator(_plain), WithJsonSchema({"type": ["string", "number", "boolean"]})]
Code = Annotated[str, Field(min_length=1), AfterValidator(_code)]
Entrypoint = Annotated[Text, AfterValidator(_entrypoint)]
RunUri = Annotated[Templated, AfterValidator(check_uri)]
Sources = Annotated[
    RunUri, BeforeValidator(_one_text), WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}})
]
StaticUri = Annotated[str, Field(min_length=1), AfterValidator(_static), AfterValidator(check_uri)]
Tag = Annotated[str, Field(min_length=1, max_length=100), ReadAtParse]
DagId = Annotated[Text, name(r"[A-Za-z0-9_.-]{1,250}", "a DAG id")]
STAGE_NAME = r"[A-Za-z_][A-Za-z0-9_-]{0,79}"
"""Short enough for the ids of tasks, which Airflow allows 250 characters: ``<group>.<stage>.stage.<input>``."""
StageName = Annotated[str, name(STAGE_NAME, "the name of a stage")]
InputName = Annotated[str, name(r"[A-Za-z][A-Za-z0-9_]{0,79}", "the name of an input")]
ArgumentName = Annotated[str, name(r"[A-Za-z_][A-Za-z0-9_.-]*", "the name of an argument")]
Arguments = dict[ArgumentName, Plain]
Grid = dict[ArgumentName, Annotated[list[Plain], Field(min_length=1)]]
Environment = dict[
    Annotated[str, name(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a variable"), AfterValidator(_variable)], Plain
]
