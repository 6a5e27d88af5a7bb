"""Validate a rendered session config for one replica."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format

from airflow_tf.core.descriptors import message_class
from airflow_tf.core.errors import SessionConfigError
from airflow_tf.core.session_config.parsing import Parser
from airflow_tf.core.session_config.plan import NO_GPU, plan
from airflow_tf.core.session_config.rules import RULES, limit_to_share
from airflow_tf.core.session_config.types import ConfigContext, FieldPlan, Judgement, Problem, ValidatedConfig


def validate(value: Mapping[str, Any] | None, context: ConfigContext) -> ValidatedConfig:
    """Check a session config, after rendering, against descriptors, rules, devices and the program's API.

    :param value: ConfigProto as a mapping with proto field names (or their JSON spelling); None is empty.
    :param context: the replica it is meant for.
    :return: the config with original field names and values of the fields' types, and how each field is used.
    :raises SessionConfigError: naming every field that is unknown, ill-typed, contradictory or without effect.
    """
    judgement = judge(value, context)
    if judgement.errors:
        raise _error(judgement.errors)
    _cross_check(judgement.config)
    warnings = tuple(str(warning) for warning in judgement.warnings)
    return ValidatedConfig(judgement.config, judgement.fields, warnings)


def judge(value: Any, context: ConfigContext) -> Judgement:  # noqa: ANN401 - judging it is the task
    """Return all that can be said about a session config, errors included, instead of raising them."""
    parser = Parser()
    config = limit_to_share(parser.parse(value), context)
    errors = list(parser.problems)
    warnings: list[Problem] = []
    for rule in RULES:
        for finding in rule(config, context):
            (errors if finding.is_error else warnings).append(finding.problem)
    fields = []
    for planned in plan(config, context):
        if isinstance(planned, FieldPlan):
            fields.append(planned)
        else:
            errors.append(planned)
    idle = [field.path for field in fields if field.by == NO_GPU]
    warnings += [Problem(path, "has no effect", "This replica runs on CPU slots.") for path in idle]
    return Judgement(config, tuple(fields), tuple(errors), tuple(warnings))


def _error(problems: tuple[Problem, ...]) -> SessionConfigError:
    if len(problems) == 1:
        return SessionConfigError(problems[0].full_path, problems[0].why, problems[0].todo)
    lines = "".join(f"\n- {problem}" for problem in problems)
    return SessionConfigError(f"session_config has {len(problems)} problems", lines)


def _cross_check(config: dict[str, Any]) -> None:
    """Let protobuf's own parser agree, since the replica reads the config with it."""
    try:
        json_format.ParseDict(config, message_class(__package__, "config.fds", "tensorflow.ConfigProto")())
    except (json_format.ParseError, ValueError) as error:
        raise SessionConfigError("session_config", str(error)) from error
