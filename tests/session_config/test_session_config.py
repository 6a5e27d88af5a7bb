"""Session configs: what is accepted, warned about and refused, and how values are typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tf.core.errors import SessionConfigError
from airflow_tf.core.session_config import ConfigContext, validate

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases.jsonl").read_text().splitlines()]
GPU = ConfigContext(api="tf2", devices=1, kind="gpu", memory_bytes=16 << 30)


def verdict(case):
    try:
        result = validate(case["config"], ConfigContext(**case["context"]))
    except SessionConfigError as error:
        return "reject", str(error)
    return ("warn" if result.warnings else "accept"), "\n".join(result.warnings)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(case):
    outcome, text = verdict(case)
    assert outcome == case["expected"], text
    if outcome == "reject":
        assert "session_config" in text
        assert case["says"] in text


def test_every_leaf_is_typed_by_its_field():
    rendered = {
        "allow_soft_placement": "True",
        "log_device_placement": "false",
        "intra_op_parallelism_threads": "04",
        "inter_op_parallelism_threads": 2.0,
        "gpuOptions": {"perProcessGpuMemoryFraction": "1e-1", "visible_device_list": 0, "allow_growth": None},
        "device_count": {"CPU": "2"},
    }
    assert validate(rendered, GPU).config == {
        "allow_soft_placement": True,
        "log_device_placement": False,
        "intra_op_parallelism_threads": 4,
        "inter_op_parallelism_threads": 2,
        "gpu_options": {"per_process_gpu_memory_fraction": 0.1, "visible_device_list": "0"},
        "device_count": {"CPU": 2},
    }


def test_all_problems_come_in_one_error():
    bad = {"allow_soft": 1, "gpu_options": {"allow_growth": "yes"}, "device_count": {"CPU": 0}}
    with pytest.raises(SessionConfigError) as caught:
        validate(bad, GPU)
    text = str(caught.value)
    assert "3 problems" in text
    for path in (
        "session_config.allow_soft:",
        "session_config.gpu_options.allow_growth:",
        "session_config.device_count.CPU:",
    ):
        assert path in text


def test_a_mapping_that_holds_itself_is_refused():
    value = {"name": "x"}
    value["parameter_map"] = {"k": {"func": {"name": "f", "attr": {}}}}
    attr = value["parameter_map"]["k"]["func"]["attr"]
    attr["again"] = {"func": {"name": "g", "attr": attr}}
    config = {"graph_options": {"rewrite_options": {"custom_optimizers": [value]}}}
    with pytest.raises(SessionConfigError, match="levels deep"):
        validate(config, ConfigContext(api="v1"))


@pytest.mark.parametrize(
    ("api", "status", "by"),
    [
        ("tf2", "applied", "tf.config.set_soft_device_placement"),
        ("v1", "applied", "ConfigProto of every session"),
        ("auto", "applied", "tf.config.set_soft_device_placement and ConfigProto of every session"),
    ],
)
def test_the_plan_says_how_a_field_reaches_the_program(api, status, by):
    (field,) = validate({"allow_soft_placement": False}, ConfigContext(api=api)).fields
    assert (field.path, field.value, field.status, field.by) == ("allow_soft_placement", False, status, by)


def test_a_field_only_sessions_have_is_shown_as_passed():
    (field,) = validate({"isolate_session_state": True}, ConfigContext(api="v1")).fields
    assert field.status == "passed"


def test_gpu_fields_on_cpu_slots_are_shown_as_passed():
    result = validate({"gpu_options": {"allow_growth": True}}, ConfigContext(api="auto", kind="cpu"))
    assert [(field.status, field.by) for field in result.fields] == [("passed", "no GPU here")]
    assert "CPU slots" in result.warnings[0]


@pytest.mark.parametrize(
    ("api", "kind", "share", "options", "fraction"),
    [
        ("tf2", "gpu", 50, {}, 0.5),
        ("v1", "gpu", 33, {"allow_growth": True}, 0.33),
        ("tf2", "gpu", 50, {"per_process_gpu_memory_fraction": 0.25}, 0.25),
        ("tf2", "gpu", 50, {"per_process_gpu_memory_fraction": 0}, 0.5),
        ("tf2", "gpu", 100, {}, None),
        ("tf2", "cpu", 50, {}, None),
        ("tf2", "static", 50, {}, None),
    ],
)
def test_a_replica_that_shares_its_gpu_gets_the_share_as_memory_limit(api, kind, share, options, fraction):
    context = ConfigContext(api=api, kind=kind, memory_bytes=16 << 30, share_percent=share)
    result = validate({"gpu_options": options}, context)
    assert result.config.get("gpu_options", {}).get("per_process_gpu_memory_fraction") == fraction
    assert ("allow_growth" in result.config.get("gpu_options", {})) == ("allow_growth" in options)
    limited = [field.status for field in result.fields if field.path.endswith("memory_fraction")]
    assert limited == (["applied"] if fraction else [])


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
NAMES = st.sampled_from(
    ["gpu_options", "gpuOptions", "device_count", "graph_options", "allow_growth", "visible_device_list", "CPU", "GPU",
     "per_process_gpu_memory_fraction", "device_filters", "experimental", "virtual_devices", "executor_type",
     "session_inter_op_thread_pool", "num_threads", "rewrite_options", "cluster_def", "job", "tasks"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=4)
)


@given(VALUES, st.sampled_from(["tf2", "v1", "auto"]), st.sampled_from(["cpu", "gpu"]))
def test_any_value_is_either_valid_or_refused_and_valid_is_stable(value, api, kind):
    context = ConfigContext(api=api, kind=kind, memory_bytes=1 << 30)
    try:
        result = validate(value, context)
    except SessionConfigError:
        return
    assert validate(json.loads(json.dumps(result.config)), context) == result


def test_validation_does_not_import_tensorflow():
    code = (
        "import sys; from airflow_tf.core.session_config import *; validate({'allow_soft_placement': True}, ConfigContext());"
        "sys.exit(any(name.split('.')[0] in ('tensorflow', 'keras', 'airflow') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
