"""The ``session_config`` of a declaration: fields, or the name of a file; judged as far as it is known when parsed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo, WithJsonSchema

from airflow_tf.core.errors import DeclarationError, SessionConfigError
from airflow_tf.core.session_config.files import form_of, in_file, names_file, parse_text
from airflow_tf.core.session_config.roles import ROLE_KEYS
from airflow_tf.core.session_config.types import WHOLE_PERCENT, ConfigContext, Problem
from airflow_tf.core.session_config.validation import judge
from airflow_tf.core.templates import check_syntax, is_template, without_templates
from airflow_tf.core.units import parse_share
from airflow_tf.pipeline.extends import is_beside, not_beside
from airflow_tf.pipeline.fields import check_templates, refuse

FILE_PATTERN = r"^[^{\n]+\.(ya?ml|json|pbtxt|textproto|prototxt|j2|jinja2?)$"
"""What the name of a file looks like, for editors."""

_UNBOUNDED_BYTES = 2**60


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a field; ``path`` is empty where the problem is in a file, whose text names the place."""

    path: str
    what: str
    todo: str = ""


def _check(value: Any, info: ValidationInfo) -> Any:  # noqa: ANN401  any YAML value
    """Return a mapping as it is, and a file as an absolute path, found from the declaration's folder."""
    if isinstance(value, dict):
        return check_templates(value)
    if not isinstance(value, str):
        what = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
        raise refuse(f"{what} is not a mapping", todo="Write keys with values below it, or name a file.")
    if not names_file(value):
        todo = (
            "Write fields, or a file relative to this one: .yaml, .json or .pbtxt, or one of these with .j2 after it."
        )
        raise refuse(f"{value!r} names no file with a session config", todo=todo)
    folder = (info.context or {}).get("folder", Path())
    file = folder / value
    if not is_beside(folder, value):
        raise refuse(*not_beside(value))
    if not file.is_file():
        raise refuse(f"no file {value!r}", f"there is no file {file}", "Give a file relative to this one.")
    return str(file.absolute())


SessionConfig = Annotated[
    Any, AfterValidator(_check), WithJsonSchema({"type": ["object", "string"], "pattern": FILE_PATTERN})
]


def findings(data: dict[str, Any], folder: Path) -> list[Finding]:
    """Return what is wrong with the literal part of the session config of a declaration as it was written.

    The rest is judged when it is rendered, for each replica.

    :param folder: where a file is found from.
    """
    train, devices = data.get("train"), data.get("devices")
    given = train.get("session_config") if isinstance(train, dict) else None
    if not isinstance(train, dict):
        return []
    context = _context(train, devices if isinstance(devices, dict) else {})
    if not names_file(given):
        return [Finding(one.path, one.why, one.todo) for one in _judged(given, context)]
    if not is_beside(folder, given):  # is told where its name is
        return []
    try:
        config = read_literal(folder / given)
    except DeclarationError as error:
        return [Finding("", f"{error.what}: {error.why}".removesuffix(": "), error.todo)]
    return [Finding("", f"{given}: {one.full_path}: {one.why}", one.todo) for one in _judged(config, context)]


def read_literal(file: Path) -> Any:  # noqa: ANN401  any YAML value
    """Return what a file holds, None where only rendering it tells.

    :raises DeclarationError: naming the file, if it cannot be read, or its templates are malformed.
    """
    if not file.is_file():  # is told where its name is
        return None
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SessionConfigError(file.name, str(error), "Give a file with a session config.") from error
    if is_template(text):
        check_syntax(text, file.name)
    form = form_of(file.name)
    try:
        return parse_text(text, form)
    except SessionConfigError as error:
        if is_template(text):
            return None
        raise in_file(file.name, error) from error


def _judged(config: Any, context: ConfigContext) -> list[Problem]:  # noqa: ANN401  any YAML value
    if not isinstance(config, dict):
        return []
    given = [role for role in ROLE_KEYS if isinstance(config.get(role), dict)]
    literal = without_templates(config)
    found = list(judge({key: item for key, item in literal.items() if key not in given}, context).errors)
    for role in given:
        found += [
            replace(problem, path=f"{role}.{problem.path}".rstrip("."))
            for problem in judge(literal[role], context).errors
        ]
    return found


def _context(train: dict[str, Any], devices: dict[str, Any]) -> ConfigContext:
    """Return the replica to judge for: where the devices are not known yet, GPUs with memory enough."""
    api, kind, count, share = train.get("api"), devices.get("kind"), devices.get("per_replica"), devices.get("share")
    return ConfigContext(
        api="v1" if api == "v1" else "tf2" if api == "tf2" else "auto",
        devices=count if isinstance(count, int) else 1,
        kind="cpu" if kind == "cpu" else "gpu",
        memory_bytes=_UNBOUNDED_BYTES,
        share_percent=_share_percent(share) if kind not in ("static", "cpu") else WHOLE_PERCENT,
    )


def _share_percent(share: Any) -> int:  # noqa: ANN401  any YAML value
    try:
        return parse_share(share)
    except DeclarationError:  # is reported for itself
        return WHOLE_PERCENT
