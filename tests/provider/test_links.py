"""Where the buttons of our tasks lead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tf.core.errors import DeclarationError
from airflow_tf.hooks.links import (
    TRAINING_ROUTE,
    HdfsBrowserLink,
    PlacementLink,
    TensorBoardLink,
    TrainingLink,
    browser_address,
    show_links,
)
from airflow_tf.hooks.settings import load_settings
from airflow_tf.plugin import AirflowTfPlugin
from airflow_tf.transfers.hdfs_to_local import HdfsToLocalOperator

KEY = SimpleNamespace(dag_id="churn", run_id="manual__1+00:00", task_id="train", map_index=-1)


class Ti(SimpleNamespace):
    """Keeps what a task pushes."""

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def test_the_training_page_is_that_of_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://flow.example.com/team/")
    begin = "https://flow.example.com/team/dags/churn/runs/manual__1%2B00%3A00/tasks/train"
    assert TrainingLink().get_link(None, ti_key=KEY) == f"{begin}/plugin/{TRAINING_ROUTE}"
    mapped = SimpleNamespace(**vars(KEY) | {"map_index": 3})
    assert TrainingLink().get_link(None, ti_key=mapped) == f"{begin}/mapped/3/plugin/{TRAINING_ROUTE}"
    pages = AirflowTfPlugin().react_apps
    assert [page["url_route"] for page in pages if page["destination"] == "task_instance"] == [TRAINING_ROUTE]


def test_the_placement_report_has_a_link_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://flow.example.com/team/")
    operator = SimpleNamespace(session_config={"log_device_placement": True}, replica=2)
    address = "https://flow.example.com/team/airflow_tf/dags/churn/placement"
    asked = "?run_id=manual__1%2B00%3A00&task_id=train&replica=2"
    assert PlacementLink().get_link(operator, ti_key=KEY) == address + asked
    assert PlacementLink().get_link(SimpleNamespace(session_config={}, replica=2), ti_key=KEY) == ""


def test_tensorboard_has_a_link_where_the_installation_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TensorBoardLink().get_link(None, ti_key=KEY) == ""
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__TENSORBOARD_URL", "https://tb/?runFilter={folder}&x={dag_id}&y={other}")
    found = TensorBoardLink().get_link(None, ti_key=KEY)
    assert found.startswith("https://tb/?runFilter=churn--manual__1-00-00--")
    assert found.endswith("&x=churn&y={other}")


@pytest.mark.parametrize("option", ["tensorboard_url", "hdfs_browser_url"])
def test_an_address_that_could_be_a_script_is_refused(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setenv(f"AIRFLOW__AIRFLOW_TF__{option.upper()}", "javascript:alert(1)")
    with pytest.raises(DeclarationError, match=option):
        load_settings()


@pytest.mark.parametrize(
    ("uri", "option", "address"),
    [
        ("webhdfs://nn:9870/data/dt=1/*.csv", "", "http://nn:9870/explorer.html#/data/dt%3D1"),
        ("swebhdfs://nn:9871/data", "", "https://nn:9871/explorer.html#/data"),
        ("hdfs://nn:8020/data", "", ""),
        ("hdfs://cluster/a b/{x,y}", "https://hue/{authority}#{path}", "https://hue/cluster#/a%20b"),
        ("file:///data", "https://hue#{path}", ""),
    ],
)
def test_the_browser_shows_the_folder_above_the_first_wildcard(uri: str, option: str, address: str) -> None:
    assert browser_address(uri, option) == address


def test_a_task_that_begins_stores_its_links() -> None:
    operator = HdfsToLocalOperator(task_id="stage", source="webhdfs://nn:9870/data/*")
    ti = Ti(pushed={}, **vars(KEY))
    show_links(operator, ti)
    assert ti.pushed == {HdfsBrowserLink("source").xcom_key: "http://nn:9870/explorer.html#/data"}
