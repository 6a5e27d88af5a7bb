"""A running Airflow whose parts can be killed, stopped and started one by one, and its REST interface."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.airflow.home import AirflowHome
from tests.supervisor.harness import wait_for

PARTS = ("scheduler", "api-server", "dag-processor", "triggerer")
START_DEADLINE_SECONDS = 240
RUN_DEADLINE_SECONDS = 300
HEARTBEAT_TIMEOUT_SECONDS = 30
POLL_SECONDS = 0.5  # each look is a request that the api-server answers from its database


@dataclass
class Part:
    """One long-running command of Airflow, leader of its own session."""

    home: AirflowHome
    name: str
    process: subprocess.Popen[bytes] | None = None
    groups: list[int] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.home.folder / f"{self.name}.log"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.home.command(self.name),
                env=self.home.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.groups.append(self.process.pid)

    def kill(self) -> None:
        """SIGKILL the command alone: what it has forked lives on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM, deadline_seconds: float = 60) -> None:
        """End the command as an operator does; SIGKILL whatever is left of its session at the deadline."""
        if self.process is not None:
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):  # then it is killed
                self.process.wait(deadline_seconds)
        for group in self.groups:
            with contextlib.suppress(ProcessLookupError):  # all of it has ended
                os.killpg(group, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        self.groups.clear()


class RunningAirflow:
    """Scheduler, api-server, dag-processor and triggerer in a migrated home, on a free port."""

    def __init__(self, home: AirflowHome) -> None:
        self.home = home
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://localhost:{port}"
        home.extra |= {
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_TIMEOUT_SECONDS),
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        }
        self.parts = {name: Part(home, name) for name in PARTS}
        self._token = ""

    def start(self) -> None:
        for part in self.parts.values():
            part.start()
        self.wait_healthy()
        self.log_in()

    def log_in(self) -> None:
        """Get a token with the password that Airflow has made."""
        passwords = self.home.folder / "simple_auth_manager_passwords.json.generated"
        user, password = next(iter(json.loads(passwords.read_text()).items()))
        self._token = self.request("POST", "/auth/token", {"username": user, "password": password})["access_token"]

    def wait_healthy(self) -> None:
        """Wait until every part reports a recent heartbeat.

        The api-server says healthy of a part that was killed, as long as its last heartbeat is young enough.
        """
        wait_for(self._is_healthy, "a healthy Airflow", START_DEADLINE_SECONDS, POLL_SECONDS)

    def _is_healthy(self) -> bool:
        for part in self.parts.values():
            assert part.is_running, f"{part.name} ended: {part.log.read_text(errors='replace')[-4000:]}"
        try:
            health = self.request("GET", "/api/v2/monitor/health")
        except (OSError, ValueError):
            return False
        names = ("metadatabase", "scheduler", "dag_processor", "triggerer")
        return all(health[name]["status"] == "healthy" for name in names)

    def revive(self) -> None:
        """Start the parts that are down."""
        for part in self.parts.values():
            if not part.is_running:
                part.start()
        self.wait_healthy()

    def stop(self) -> None:
        for name in reversed(PARTS):  # the api-server goes after those that talk to it, the scheduler last
            self.parts[name].stop(deadline_seconds=30)

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(self.url + path, method=method)
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.add_note(error.read().decode(errors="replace"))
            raise

    def trigger(
        self, dag_id: str, run_id: str, conf: dict[str, Any] | None = None, logical_date: str | None = None
    ) -> None:
        """Trigger over REST, as soon as the DAG processor has found the DAG."""
        self.wait_known(dag_id)
        body = {"dag_run_id": run_id, "logical_date": logical_date, "conf": conf or {}}
        self.request("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)

    def wait_known(self, dag_id: str) -> None:
        """Wait until the DAG processor has found the DAG."""

        def known() -> bool:
            try:
                return not self.request("GET", f"/api/v2/dags/{dag_id}")["is_paused"]
            except urllib.error.HTTPError:
                return False

        wait_for(known, f"DAG {dag_id}", pause_seconds=POLL_SECONDS)

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int = -1) -> None:
        """Set a task instance's state, as a user does."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        path += f"/{map_index}" if map_index >= 0 else ""
        self.request("PATCH", path, {"new_state": state})

    def clear(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> None:
        """Clear one task instance alone, as a user does."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "only_failed": False,
            "task_ids": [task_id if map_index < 0 else [task_id, map_index]],
        }
        self.request("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", body)

    def mark_run(self, dag_id: str, run_id: str, state: str) -> None:
        """Set a run's state, as a user does; tasks that run are ended by their next heartbeat."""
        self.request("PATCH", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}", {"state": state})

    def run_state(self, dag_id: str, run_id: str) -> str:
        return str(self.request("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def wait_run(self, dag_id: str, run_id: str, deadline_seconds: float = RUN_DEADLINE_SECONDS) -> str:
        """Wait for the end of a run and return its state."""
        wait_for(
            lambda: self.run_state(dag_id, run_id) in {"success", "failed"},
            f"the end of {run_id}",
            deadline_seconds,
            POLL_SECONDS,
        )
        return self.run_state(dag_id, run_id)

    def instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        found = self.request("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return [dict(row) for row in found]

    def log_of(self, dag_id: str, run_id: str, task_id: str, try_number: int, map_index: int = -1) -> str:
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}?map_index={map_index}"
        return json.dumps(self.request("GET", path))
