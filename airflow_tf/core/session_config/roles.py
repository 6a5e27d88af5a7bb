"""What one role of a cluster is given of a session config: the part for all, and over it the part under its name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_tf.core.errors import SessionConfigError
from airflow_tf.core.session_config.files import parse_text

ROLE_KEYS = ("chief", "worker", "ps", "evaluator")
"""Keys of a session config that are no fields of ConfigProto: each holds what differs for that role."""


def for_role(value: Any, role: str | None, roles: Collection[str]) -> Any:  # noqa: ANN401 - judged afterwards
    """Return the session config of a replica: that of its role laid over the common one, field by field.

    :param value: as rendered: a mapping, or YAML, JSON or text format as text.
    :param role: what the replica is, None where replicas form no cluster.
    :param roles: all roles of the cluster.
    :raises SessionConfigError: if there is a part for a role that the cluster does not have.
    """
    config = parse_text(value) if isinstance(value, str) else value
    if not isinstance(config, Mapping):
        return config
    given = [key for key in config if key in ROLE_KEYS]
    for key in given:
        if key not in roles:
            why = f"the cluster has {', '.join(roles)} only" if roles else "these replicas form no cluster"
            raise SessionConfigError(f"session_config.{key}", why, "Remove it, or declare the role.")
        if not isinstance(config[key], Mapping | None):
            raise SessionConfigError(f"session_config.{key}", "must be a mapping of ConfigProto fields")
    common = {key: item for key, item in config.items() if key not in given}
    own: Any = config[role] if role is not None and role in given else None
    return common if own is None else _overlay(common, own)


def common_part(value: Any) -> Any:  # noqa: ANN401 - judged afterwards
    """Return a session config without the parts for roles: what a program is given that is in no cluster."""
    config = parse_text(value) if isinstance(value, str) else value
    return {k: v for k, v in config.items() if k not in ROLE_KEYS} if isinstance(config, Mapping) else config


def _overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, item in above.items():
        under = result.get(key)
        if isinstance(under, Mapping) and isinstance(item, Mapping):
            result[key] = _overlay(under, item)
        else:
            result[key] = item
    return result
