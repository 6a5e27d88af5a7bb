"""Session configs (TensorFlow's ConfigProto): checked against the real descriptors, without TensorFlow.

TensorFlow itself checks only names and types, ignores what it does not use, and aborts or hangs on some values.
Here every field is coerced by its descriptor (templates render to text), judged by a table of rules, and then
either has a way into the program or is refused.
"""

from __future__ import annotations

from airflow_tf.core.session_config.types import ConfigContext, FieldPlan, ValidatedConfig
from airflow_tf.core.session_config.validation import validate

__all__ = ["ConfigContext", "FieldPlan", "ValidatedConfig", "validate"]
