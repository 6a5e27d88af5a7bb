"""Who is let in to the plugin's application, as Airflow's API server mounts it."""

from __future__ import annotations

import pytest
from airflow.api_fastapi.app import create_auth_manager, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_tf.core.identity import GangKey
from airflow_tf.hooks.settings import load_settings
from airflow_tf.ledger import open_ledger
from airflow_tf.plugin import AirflowTfPlugin

PATHS = [
    "/airflow_tf/pages.js",
    "/airflow_tf/devices",
    "/airflow_tf/dags/churn/training?run_id=r",
    "/airflow_tf/dags/churn/training/key/curves?run_id=r&after=0:",
    "/airflow_tf/dags/churn/training/key/replicas/0?run_id=r",
]


@pytest.fixture(scope="module")
def client(airflow_database):
    create_auth_manager().init()
    server = FastAPI()
    for each in AirflowTfPlugin().fastapi_apps:
        server.mount(each["url_prefix"], each["app"])
    return TestClient(server)


@pytest.fixture(scope="module")
def viewer():
    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="eve", role="viewer"))
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_read_without_a_login(client, path):
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"Authorization": "Bearer nonsense"}).status_code == 403


@pytest.mark.parametrize("path", PATHS[2:])
def test_nothing_of_a_dag_is_read_without_its_permission(client, viewer, path, monkeypatch):
    monkeypatch.setattr(type(get_auth_manager()), "is_authorized_dag", lambda _manager, **_: False)
    assert client.get(path, headers=viewer).status_code == 403


@pytest.mark.parametrize("path", ["/airflow_tf/docs", "/airflow_tf/openapi.json", "/airflow_tf/redoc"])
def test_there_is_no_open_description(client, path):
    assert client.get(path).status_code == 404


def test_devices_are_sent_again_only_when_they_have_changed(client, viewer):
    first = client.get(PATHS[1], headers=viewer)
    assert first.status_code == 200
    assert {device["kind"] for device in first.json()["devices"]} == {"cpu"}
    again = client.get(PATHS[1], headers=viewer | {"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_run_shows_its_gangs_and_none_of_another_dag(client, viewer, tmp_path):
    ledger = open_ledger(load_settings())
    key = GangKey(ledger.ledger_id, "churn", "r", "train")
    ledger.open_gang(key, 2, str(tmp_path / "gone"))
    page = client.get(PATHS[2], headers=viewer).json()
    assert [(gang["key"], gang["task_id"], gang["is_here"]) for gang in page["gangs"]] == [(key.key, "train", False)]
    assert client.get("/airflow_tf/dags/other/training?run_id=r", headers=viewer).json() == {"gangs": []}
    asked = "/airflow_tf/dags/churn/placement?run_id=r&task_id=train&replica="
    assert client.get(f"{asked}0", headers=viewer).status_code == 404
    for dag_id, why in (("other", "no such training"), ("churn", "cannot be read")):
        path = f"/airflow_tf/dags/{dag_id}/training/{key.key}/replicas/0?run_id=r"
        found = client.get(path, headers=viewer)
        assert found.status_code == 404
        assert why in found.json()["detail"]
