"""The session config of an operator: perhaps the name of a file, which is rendered like any template of the DAG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from airflow_tf.core.errors import SessionConfigError
from airflow_tf.core.session_config import ConfigContext, ValidatedConfig, validate
from airflow_tf.core.session_config.files import form_of, in_file, names_file, parse_text
from airflow_tf.core.session_config.roles import for_role


def render_config_file(name: str, variables: Mapping[str, Any], environment: jinja2.Environment) -> Any:  # noqa: ANN401 (judged afterwards)
    """Return the session config that the file ``name`` holds once its templates are rendered.

    :param name: an absolute path, or one that the DAG's Jinja environment finds: beside the DAG file, or on its
        ``template_searchpath``.
    :raises SessionConfigError: naming the file, if it is not there, cannot be rendered, or is of no known form.
    """
    form = form_of(name)
    try:
        rendered = environment.from_string(_source(name, environment)).render(variables)
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        where = f"line {line}: " if line is not None else ""
        raise SessionConfigError(name, f"{where}{error.message}", "Correct the template.") from error
    if not isinstance(rendered, str):  # of an environment that renders native objects
        return rendered
    try:
        return parse_text(rendered, form)
    except SessionConfigError as error:
        raise in_file(name, error) from error


def validate_config(value: Any, declared: object, role: str | None, context: ConfigContext) -> ValidatedConfig:  # noqa: ANN401 (rendered)
    """Check the session config of one replica: that for all, with what its role is given instead.

    :param declared: what it was before it was rendered: errors name the file, if it is one.
    :raises SessionConfigError: naming every field that cannot be applied.
    """
    try:
        return validate(for_role(value, role, context.roles), context)
    except SessionConfigError as error:
        raise (in_file(declared, error) if names_file(declared) else error) from error


def _source(name: str, environment: jinja2.Environment) -> str:
    try:
        if Path(name).is_absolute() or environment.loader is None:
            return Path(name).read_text(encoding="utf-8")
        return environment.loader.get_source(environment, name)[0]
    except (OSError, UnicodeDecodeError, jinja2.TemplateNotFound) as error:
        reason = (
            "there is no such file beside the DAG file" if isinstance(error, jinja2.TemplateNotFound) else str(error)
        )
        raise SessionConfigError(name, reason, "Give a file with a session config.") from error
