"""Session configs per role, and filters of devices that fit the cluster."""

from __future__ import annotations

import pytest

from airflow_tf.core.errors import SessionConfigError
from airflow_tf.core.session_config import ConfigContext, validate
from airflow_tf.core.session_config.roles import for_role

ROLES = ("chief", "worker", "ps")
CONFIG = {
    "intra_op_parallelism_threads": 2,
    "device_count": {"CPU": 2, "GPU": 1},
    "ps": {"device_count": {"GPU": 0}, "intra_op_parallelism_threads": 1},
}
COMMON = {"intra_op_parallelism_threads": 2, "device_count": {"CPU": 2, "GPU": 1}}


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("worker", COMMON),
        ("ps", {"intra_op_parallelism_threads": 1, "device_count": {"CPU": 2, "GPU": 0}}),
    ],
)
def test_the_part_of_a_role_lies_over_the_common_one(role, expected):
    assert for_role(CONFIG, role, ROLES) == expected


@pytest.mark.parametrize(
    "text",
    [
        "intra_op_parallelism_threads: 2\ndevice_count: {CPU: 2, GPU: 1}",
        '{"intra_op_parallelism_threads": 2, "device_count": {"CPU": 2, "GPU": 1}}',
        "{'intra_op_parallelism_threads': 2, 'device_count': {'CPU': 2, 'GPU': 1}, 'gpu_options': None}",
        'intra_op_parallelism_threads: 2 device_count { key: "CPU" value: 2 } device_count { key: "GPU" value: 1 }',
    ],
)
def test_a_template_may_render_the_whole_config_as_text(text):
    context = ConfigContext(api="v1", devices=1, kind="gpu")
    assert validate(for_role(text, None, ()), context).config == COMMON


def test_a_part_for_a_role_that_is_not_there_is_refused():
    with pytest.raises(SessionConfigError, match=r"session_config.ps: the cluster has chief, worker only"):
        for_role(CONFIG, "worker", ("chief", "worker"))
    with pytest.raises(SessionConfigError, match="form no cluster"):
        for_role(CONFIG, None, ())
    with pytest.raises(SessionConfigError, match=r"session_config.ps: must be a mapping"):
        for_role({"ps": 1}, "ps", ROLES)


@pytest.mark.parametrize("text", ["/job:ps", "/job:worker/task:0", "/job:worker/replica:0/task:1", "/job:ps/cpu:0"])
def test_filters_of_the_cluster_are_taken(text):
    assert validate({"device_filters": [text]}, ConfigContext(api="v1", strategy="v1_cluster", roles=ROLES))


@pytest.mark.parametrize(
    ("text", "said"), [("/job:master", "jobs are chief, worker, ps"), ("ps", "device name"), ("/job:ps,/job:a", "device name")]
)  # fmt: skip
def test_filters_that_match_nothing_are_refused(text, said):
    with pytest.raises(SessionConfigError, match=said):
        validate({"device_filters": [text]}, ConfigContext(api="v1", strategy="v1_cluster", roles=ROLES))
