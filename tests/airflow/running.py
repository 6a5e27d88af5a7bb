"""A running Airflow (scheduler, api-server, dag-processor, triggerer) and its REST interface."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from typing import Any

from tests.airflow.home import AirflowHome
from tests.supervisor.harness import wait_for

START_DEADLINE_SECONDS = 240
RUN_DEADLINE_SECONDS = 300


class RunningAirflow:
    """``airflow standalone`` in a home, on a free port."""

    def __init__(self, home: AirflowHome) -> None:
        self.home = home
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://localhost:{port}"
        home.extra |= {
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        }
        self._log = home.folder / "standalone.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._token = ""

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.home.command("standalone"),
                env=self.home.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        passwords = self.home.folder / "simple_auth_manager_passwords.json.generated"
        wait_for(lambda: self._healthy() and passwords.exists(), "a healthy Airflow", START_DEADLINE_SECONDS)
        user, password = next(iter(json.loads(passwords.read_text()).items()))
        self._token = self._request("POST", "/auth/token", {"username": user, "password": password})["access_token"]

    def _healthy(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-4000:]
        try:
            health = self._request("GET", "/api/v2/monitor/health")
        except (OSError, ValueError):
            return False
        return all(health[part]["status"] == "healthy" for part in ("metadatabase", "scheduler", "dag_processor"))

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(self.url + path, method=method)
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def trigger(self, dag_id: str, run_id: str, conf: dict[str, Any] | None = None) -> None:
        """Trigger over REST, as soon as the DAG processor has found the DAG."""

        def known() -> bool:
            try:
                return not self._request("GET", f"/api/v2/dags/{dag_id}")["is_paused"]
            except urllib.error.HTTPError:
                return False

        wait_for(known, f"DAG {dag_id}")
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf or {}}
        self._request("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)

    def run_state(self, dag_id: str, run_id: str) -> str:
        return str(self._request("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def wait_run(self, dag_id: str, run_id: str) -> str:
        """Wait for the end of a run and return its state."""
        wait_for(
            lambda: self.run_state(dag_id, run_id) in {"success", "failed"},
            f"the end of {run_id}",
            RUN_DEADLINE_SECONDS,
        )
        return self.run_state(dag_id, run_id)

    def instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        found = self._request("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return [dict(row) for row in found]

    def log_of(self, dag_id: str, run_id: str, task_id: str, try_number: int, map_index: int = -1) -> str:
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}?map_index={map_index}"
        return json.dumps(self._request("GET", path))
