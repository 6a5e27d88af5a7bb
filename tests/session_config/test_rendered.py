"""What templates render, as text and as native values: the field decides the type, whichever it was."""

from __future__ import annotations

import pytest
from jinja2 import Environment
from jinja2.nativetypes import NativeEnvironment

from airflow_tf.core.errors import SessionConfigError
from airflow_tf.core.session_config import ConfigContext, validate

V1 = ConfigContext(api="v1", devices=2, kind="gpu")
FRACTION = ("gpu_options", "per_process_gpu_memory_fraction")
EXECUTOR = ("experimental", "executor_type")
RENDERED = [
    (FRACTION, "1e-1", 0.1),
    (FRACTION, "{{ '1e-1' }}", 0.1),
    (FRACTION, "{{ 1 / 4 }}", 0.25),
    (FRACTION, "{{ 1 }}", 1.0),
    (FRACTION, "{{ none }}", None),
    (FRACTION, "None", None),
    (("intra_op_parallelism_threads",), "{{ '01' }}", 1),
    (("intra_op_parallelism_threads",), "01", 1),
    (("intra_op_parallelism_threads",), "{{ 4.0 }}", 4),
    (("intra_op_parallelism_threads",), "{{ 2 + 2 }}", 4),
    (("operation_timeout_in_ms",), "{{ 60 * 1000.0 }}", 60000),
    (("allow_soft_placement",), "{{ true }}", True),
    (("allow_soft_placement",), "{{ 'false' }}", False),
    (("allow_soft_placement",), "TRUE", True),
    (("gpu_options", "visible_device_list"), "{{ 1 }}", "1"),
    (("gpu_options", "visible_device_list"), "{{ '0,1' }}", "0,1"),
    (EXECUTOR, "{{ 'DEFAULT' }}", "DEFAULT"),
    (("graph_options", "rewrite_options", "remapping"), "{{ 'OFF' }}", "OFF"),
    (("graph_options", "rewrite_options", "remapping"), "{{ 2 }}", "OFF"),
    (("device_count", "CPU"), "{{ '2' }}", 2),
]
REFUSED = [
    (("intra_op_parallelism_threads",), "{{ 2.5 }}", "must be an integer"),
    (("intra_op_parallelism_threads",), "{{ true }}", "must be an integer"),
    (("intra_op_parallelism_threads",), "2024-01-01", "must be an integer"),
    (("allow_soft_placement",), "yes", "true or false"),
    (("gpu_options", "allow_growth"), "{{ [true, false] }}", "true or false"),
    (FRACTION, "{{ 'nan' }}", "finite"),
    (("graph_options", "rewrite_options", "remapping"), "{{ false }}", "not a boolean"),
]
ENVIRONMENTS = pytest.mark.parametrize("environment", [Environment(), NativeEnvironment()], ids=["text", "native"])


def rendered(environment, path, template):
    value = environment.from_string(template).render()
    for name in reversed(path):
        value = {name: value}
    return value


@ENVIRONMENTS
@pytest.mark.parametrize(("path", "template", "expected"), RENDERED)
def test_a_rendered_value_gets_the_type_of_its_field(environment, path, template, expected):
    found = validate(rendered(environment, path, template), V1).config
    for name in path:
        found = found.get(name) if found else None
    assert (found, type(found)) == (expected, type(expected))


@ENVIRONMENTS
@pytest.mark.parametrize(("path", "template", "said"), REFUSED)
def test_a_rendered_value_of_another_type_is_refused_with_its_path(environment, path, template, said):
    with pytest.raises(SessionConfigError, match=said) as caught:
        validate(rendered(environment, path, template), V1)
    assert f"session_config.{'.'.join(path)}" in str(caught.value)
