"""Who is let in to the plugin's application, as Airflow's API server mounts it."""

from __future__ import annotations

import pytest
from airflow.api_fastapi.app import create_auth_manager, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from airflow_tf.core.identity import GangKey
from airflow_tf.hooks.settings import load_settings
from airflow_tf.ledger import open_ledger
from airflow_tf.plugin import AirflowTfPlugin

TRAINING = "/airflow_tf/dags/churn/training?run_id=r"
QUERY = "?run_id=r&task_id=train&replica=0&after=0:"
NEEDS_ONLY_A_LOGIN = "/airflow_tf/pages.js"


@pytest.fixture(scope="module")
def client(airflow_database):
    create_auth_manager().init()
    server = FastAPI()
    for each in AirflowTfPlugin().fastapi_apps:
        server.mount(each["url_prefix"], each["app"])
    return TestClient(server)


@pytest.fixture(scope="module")
def paths():
    """Every route there is, as a path that names a DAG."""
    found = []
    for each in AirflowTfPlugin().fastapi_apps:
        for route in each["app"].routes:
            assert isinstance(route, APIRoute), "what is mounted has dependencies of its own"
            assert route.methods == {"GET"}
            found.append(each["url_prefix"] + route.path.format(dag_id="churn", key="key", replica=0))
    assert len(found) > 1
    return found


@pytest.fixture(scope="module")
def viewer():
    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="eve", role="viewer"))
    return {"Authorization": f"Bearer {token}"}


def codes(client, paths, query=QUERY, **headers):
    return {path: client.get(path + query, headers=headers).status_code for path in paths}


def test_nothing_is_read_without_a_login(client, paths):
    assert codes(client, paths) == dict.fromkeys(paths, 401)
    assert codes(client, paths, Authorization="Bearer nonsense") == dict.fromkeys(paths, 403)


def test_nothing_but_the_program_of_the_pages_is_read_without_a_permission(client, viewer, paths, monkeypatch):
    monkeypatch.setattr(type(get_auth_manager()), "is_authorized_dag", lambda _manager, **_: False)
    monkeypatch.setattr(type(get_auth_manager()), "is_authorized_view", lambda _manager, **_: False)
    assert codes(client, paths, **viewer) == dict.fromkeys(paths, 403) | {NEEDS_ONLY_A_LOGIN: 200}


def test_a_run_without_a_name_is_refused_and_is_not_all_runs(client, viewer, paths):
    of_a_dag = [path for path in paths if "/dags/" in path]
    assert codes(client, of_a_dag, QUERY.replace("run_id=r", "run_id="), **viewer) == dict.fromkeys(of_a_dag, 422)


@pytest.mark.parametrize("path", ["/airflow_tf/docs", "/airflow_tf/openapi.json", "/airflow_tf/redoc"])
def test_there_is_no_open_description(client, path):
    assert client.get(path).status_code == 404


def test_devices_are_sent_again_only_when_they_have_changed(client, viewer):
    first = client.get("/airflow_tf/devices", headers=viewer)
    assert first.status_code == 200
    assert {device["kind"] for device in first.json()["devices"]} == {"cpu"}
    again = client.get("/airflow_tf/devices", headers=viewer | {"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_run_shows_its_gangs_and_none_of_another_dag(client, viewer, tmp_path):
    ledger = open_ledger(load_settings())
    key = GangKey(ledger.ledger_id, "churn", "r", "train")
    ledger.open_gang(key, 2, str(tmp_path / "gone"))
    ledger.open_gang(GangKey(ledger.ledger_id, "churn", "r2", "train"), 2, str(tmp_path / "gone"))
    page = client.get(TRAINING, headers=viewer).json()
    assert [(gang["key"], gang["task_id"], gang["is_here"]) for gang in page["gangs"]] == [(key.key, "train", False)]
    assert client.get("/airflow_tf/dags/other/training?run_id=r", headers=viewer).json() == {"gangs": []}
    asked = "/airflow_tf/dags/churn/placement?run_id=r&task_id=train&replica="
    assert client.get(f"{asked}0", headers=viewer).status_code == 404
    for dag_id, why in (("other", "no such training"), ("churn", "cannot be read")):
        path = f"/airflow_tf/dags/{dag_id}/training/{key.key}/replicas/0?run_id=r"
        found = client.get(path, headers=viewer)
        assert found.status_code == 404
        assert why in found.json()["detail"]
