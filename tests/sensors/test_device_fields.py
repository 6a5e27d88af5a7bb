"""What tasks ask of devices is read from rendered fields: what cannot be read is refused by the field's name."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.errors import TemplateError
from airflow_tf.core.ledger import Turn
from airflow_tf.hooks.devices import DEVICE_FIELDS, DeviceSeeker
from airflow_tf.operators.train import TensorFlowTrainOperator
from airflow_tf.sensors.devices import DeviceAvailabilitySensor


def seeker(**fields):
    return DeviceSeeker(task_id="t", **fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"kind": " gpu ", "per_replica": "2"}, {"kind": "gpu", "per_replica": 2}),
        ({"min_free_memory": "10GiB"}, {"min_free_bytes": 10 * 2**30}),
        ({"max_utilization": 0}, {"max_utilization_percent": 0}),
        ({"max_utilization": " 20 %"}, {"max_utilization_percent": 20}),
        ({"max_utilization": "100"}, {"max_utilization_percent": 100}),
        ({"names": "*A100*"}, {"names": ("*A100*",)}),
        ({"names": ["*A100*", "NVIDIA H100, 80 GB"]}, {"names": ("*A100*", "NVIDIA H100, 80 GB")}),
        ({"uuids": "GPU-a, GPU-b,"}, {"uuids": ("GPU-a", "GPU-b")}),
        ({"uuids": ["GPU-a"]}, {"uuids": ("GPU-a",)}),
        ({"share": 0.5}, {"share_percent": 50}),
        ({"share": "0.29"}, {"share_percent": 29}),
        ({"share": 1 / 3}, {"share_percent": 33}),
        ({"per_host": "4"}, {"per_host": 4}),
    ],
)
def test_fields_become_a_request(fields, expected):
    assert seeker(**fields).device_request() == DeviceRequest(**expected)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"per_replica": 0}, "per_replica: 0 is too small"),
        ({"min_free_memory": "lots"}, "min_free_memory: 'lots' is not a size"),
        ({"max_utilization": 0.3}, "max_utilization: 0.3 is not a percentage"),
        ({"max_utilization": "101%"}, "max_utilization: '101%' is not a percentage"),
        ({"names": []}, "names: .* names nothing"),
        ({"names": ""}, "names: '' names nothing"),
        ({"uuids": {"a": 1}}, "uuids: .* is not a list"),
        ({"uuids": [0]}, "uuids: .* is not a list"),
        ({"share": 0}, "share: 0 is not a part"),
        ({"share": 0.001}, "share: 0.001 is not a part"),
        ({"share": 2}, "share: 2 is not a part"),
        ({"share": "50%"}, "share: '50%' is not a part"),
        ({"share": True}, "share: True is not a part"),
        ({"share": "half"}, "share: 'half' is not a part"),
        ({"per_host": "0"}, "per_host: 0 is too small"),
    ],
)
def test_what_cannot_be_read_is_refused_by_the_field_s_name(fields, words):
    with pytest.raises(TemplateError, match=words):
        seeker(**fields).device_request()


def test_the_place_in_the_queue_is_read_too():
    assert seeker().turn(5.0) == Turn(0, None, 5.0)
    assert seeker(priority="-3", time_limit="2h").turn(0.0) == Turn(-3, 7200.0, 1.0)
    with pytest.raises(TemplateError, match="time_limit: 'soon' is not a duration"):
        seeker(time_limit="soon").turn(5.0)
    with pytest.raises(TemplateError, match="priority: 'high' is not a whole number"):
        seeker(priority="high").turn(5.0)


@pytest.mark.parametrize(("time_limit", "is_warned"), [("2h", False), ("3h", True)])
def test_a_promise_that_outlasts_the_task_s_own_limit_is_warned_of(time_limit, is_warned):
    task = seeker(time_limit=time_limit, execution_timeout=timedelta(hours=2))
    lines = []
    task._cached_logger = SimpleNamespace(warning=lambda text, *args: lines.append(text % args))
    task.turn(5.0)
    assert lines == (["time_limit 3h is longer than execution_timeout 2:00:00"] if is_warned else [])


@pytest.mark.parametrize(
    "make",
    [
        lambda **fields: DeviceAvailabilitySensor(task_id="s", for_task="t", **fields),
        lambda **fields: TensorFlowTrainOperator(task_id="t", replica=0, entrypoint="x.py", **fields),
    ],
)
def test_every_field_of_a_sensor_or_operator_may_be_a_template(make):
    rendered = {"kind": "cpu", "per_replica": "2", "share": "0.5", "uuids": "a,b", "names": "X*", "per_host": "3"}
    task = make(**{name: f"{{{{ params.{name} }}}}" for name in rendered})
    assert set(DEVICE_FIELDS) <= set(task.template_fields)
    for name, value in rendered.items():
        setattr(task, name, task.render_template(getattr(task, name), {"params": {name: value}}))
    expected = DeviceRequest("cpu", 2, names=("X*",), uuids=("a", "b"), share_percent=50, per_host=3)
    assert task.device_request() == expected
