"""Every field of ConfigProto, found by its descriptor: a new one cannot be forgotten."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import FieldDescriptor

from airflow_tf.core.session_config.parsing import config_descriptor
from airflow_tf.core.session_config.plan import APPLIED
from airflow_tf.core.session_config.report import describe_config

VALUES = {
    FieldDescriptor.TYPE_BOOL: "True",
    FieldDescriptor.TYPE_DOUBLE: "5e-1",
    FieldDescriptor.TYPE_FLOAT: "1e3",
    FieldDescriptor.TYPE_INT32: "01",
    FieldDescriptor.TYPE_INT64: "01",
    FieldDescriptor.TYPE_UINT32: "01",
    FieldDescriptor.TYPE_UINT64: "01",
    FieldDescriptor.TYPE_STRING: "0",
    FieldDescriptor.TYPE_BYTES: "AA==",
}
SPECIAL = {"device_filters": "/job:ps", "executor_type": "DEFAULT", "priority": "0", "name": "x"}
COUNT = 232  # fields of the 33 messages of TensorFlow 2.21's ConfigProto


def is_map(field):
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def paths(descriptor, path=(), inside=()):
    """Yield the path to every field; a message that is met again inside itself is not entered twice."""
    for field in descriptor.fields:
        here = (*path, field)
        yield here
        message = field.message_type.fields_by_name["value"].message_type if is_map(field) else field.message_type
        if message is not None and message.full_name not in inside:
            yield from paths(message, here, (*inside, message.full_name))


PATHS = list(paths(config_descriptor()))


def is_leaf(path):
    field = path[-1].message_type.fields_by_name["value"] if is_map(path[-1]) else path[-1]
    return field.message_type is None


LEAVES = [path for path in PATHS if is_leaf(path)]


def leaf(field):
    if is_map(field):
        return leaf(field.message_type.fields_by_name["value"])
    if field.enum_type is not None:
        return field.enum_type.values[0].name
    return SPECIAL.get(field.name, VALUES[field.type])


def nested(path):
    """Return a config with a value, as text, at the end of the path, and what that field cannot be without."""
    value = leaf(path[-1])
    for field in reversed(path):
        if is_map(field):
            value = {"CPU" if field.name == "device_count" else "1": value}
        elif field.is_repeated:
            value = [value]
        value = {field.name: value}
        if field.name in {"priority", "device_ordinal"}:
            value["memory_limit_mb"] = ["1e3"]
    return value


@pytest.mark.parametrize("path", LEAVES, ids=[".".join(field.name for field in path) for path in LEAVES])
def test_a_field_is_applied_or_refused_with_a_reason(path):
    row = describe_config(nested(path))
    assert row["fields"], row["errors"]
    for name, ways in row["fields"].items():
        assert set(ways) == {"v1", "tf2", "server"}
        if name not in APPLIED:
            assert ways["tf2"].startswith("refused: ")
            assert len(ways["tf2"]) > len("refused: the public")
    assert row["errors"] == []


def test_no_field_of_any_message_is_left_out():
    found = {(field.containing_type.full_name, field.name) for path in PATHS for field in path}
    entries = {path[-1].message_type.full_name for path in PATHS if is_map(path[-1])}
    assert len(found) + 2 * len(entries) == COUNT  # key and value of each map
