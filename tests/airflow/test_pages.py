"""The pages in Airflow's user interface, looked at with a browser: real API server, real Chromium."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, StorageState, expect, sync_playwright

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted, Turn
from airflow_tf.supervisor.acquire import acquire
from airflow_tf.testing.nvml import Gpu, SimulatedNvml
from tests.airflow.home import AirflowHome
from tests.airflow.running import RunningAirflow
from tests.supervisor.harness import Gang, kill, wait_for, write_checkpoint

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

DEADLINE_MS = 60_000
GIB = 2**30
TAKEN = [
    Gpu(uuid="GPU-2", used_bytes=38 * GIB, utilization=97, processes=[(1, 38 * GIB)]),
    Gpu(uuid="GPU-3", remap=(0, 1, 0, 1)),
]
FREE = [Gpu(uuid="GPU-0"), Gpu(uuid="GPU-1")]
WORKING = [
    Gpu(uuid="GPU-0", used_bytes=9 * GIB, utilization=84),
    Gpu(uuid="GPU-1", used_bytes=8 * GIB, utilization=71),
]
DAG = """
from airflow.sdk import DAG, Asset
from airflow_tf.operators.train import TensorFlowTrainOperator

with DAG("dag", schedule=None):
    train = TensorFlowTrainOperator.partial(task_id="train", entrypoint="none.py", outlets=[Asset("file:///models")])
    train.expand(replica=[0, 1])
"""
PUBLISHED = {"uri": "file:///models/v=1", "step": 1200, "metrics": {"mae": 12.5}, "digest": "d"}
PROGRAM = """
import json, os, pathlib, time
metrics = pathlib.Path(os.environ["AIRFLOW_TF_METRICS_FILE"])
replica = int(os.environ["AIRFLOW_TF_REPLICA"])
applied = {"gpu_options.allow_growth": "tf.config.experimental.set_memory_growth"}
asked = {"gpu_options": {"allow_growth": True}}
(metrics.parent / "session_config.json").write_text(json.dumps({"asked": asked, "applied": applied, "passed": {}}))
counts = {"/job:localhost/replica:0/task:0/device:GPU:0": 41}
(metrics.parent / "placement.json").write_text(json.dumps({"counts": counts, "on_cpu": {}, "transfers": {"CPU:0 -> GPU:0": 3}}))
with metrics.open("a") as file:
    step = 0
    while not pathlib.Path(os.environ["STOP_FILE"]).exists():
        step += 10
        now = time.time()
        row = {"step": step, "time": now, "loss": (2 + replica / 4) / (1 + step / 200)}
        file.write(json.dumps(row) + "\\n")
        file.flush()
        time.sleep(0.1 * (replica + 1))
"""


@dataclass
class Installation:
    """An Airflow of which only the API server runs, a gang that trains on two GPUs, and one that waits."""

    airflow: RunningAirflow
    gang: Gang
    stop_file: Path

    @property
    def password(self) -> str:
        path = self.airflow.home.folder / "simple_auth_manager_passwords.json.generated"
        return str(json.loads(path.read_text())["admin"])


def _serve(folder: Path, nvml: SimulatedNvml) -> RunningAirflow:
    home = AirflowHome(folder, (folder / "store").as_uri(), extra=dict(nvml.environment))
    home.dags.mkdir()
    (folder / "locks").mkdir()
    (home.dags / "dag.py").write_text(DAG)
    home.run("db", "migrate")
    airflow = RunningAirflow(home)
    server = airflow.parts["api-server"]
    server.start()
    home.run("dags", "reserialize")

    def answers() -> bool:
        assert server.is_running, server.log.read_text(errors="replace")[-4000:]
        try:
            return bool(airflow.request("GET", "/api/v2/version"))
        except (OSError, ValueError):
            return False

    wait_for(answers, "the API server", 240, 0.5)
    airflow.log_in()
    airflow.trigger("dag", "run")
    return airflow


def _reserve(gang: Gang) -> None:
    """Two GPUs for the gang, and a place in the queue for another one."""
    request = DeviceRequest("gpu")
    granted = acquire(gang.ledger, gang.settings, gang.key, request, range(2))
    assert isinstance(granted, Granted), granted
    other = GangKey(gang.ledger.ledger_id, "dag", "later", "train")
    gang.ledger.open_gang(other, 2, str(gang.folder.parent / "later"))
    acquire(gang.ledger, gang.settings, other, request, range(2), Turn(look_seconds=600))


def _publish(home: AirflowHome, run_id: str) -> None:
    """The event of a publication, as the operator leaves it in Airflow's database."""
    names = "asset_id, source_dag_id, source_task_id, source_run_id, source_map_index, extra, timestamp"
    values = "id, 'dag', 'publish', ?, -1, ?, ?"
    with contextlib.closing(sqlite3.connect(home.folder / "airflow.db", timeout=30)) as database, database:
        done = database.execute(
            f"INSERT INTO asset_event ({names}) SELECT {values} FROM asset",
            (run_id, json.dumps(PUBLISHED), "2026-12-03 05:00:00.000000"),
        )
        assert done.rowcount == 1


def _call(home: AirflowHome, map_index: int, name: str | None) -> None:
    """Give a task instance the name that Airflow stores when the task begins and has a ``map_index_template``."""
    with contextlib.closing(sqlite3.connect(home.folder / "airflow.db", timeout=30)) as database, database:
        done = database.execute(
            "UPDATE task_instance SET rendered_map_index = ? "
            "WHERE dag_id = 'dag' AND run_id = 'run' AND task_id = 'train' AND map_index = ?",
            (name, map_index),
        )
        assert done.rowcount == 1


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("pages")
    nvml = SimulatedNvml(folder / "nvml")
    nvml.write([*FREE, *TAKEN])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in nvml.environment.items():
            patch.setenv(name, value)
        airflow = _serve(folder, nvml)
        home = airflow.home
        home.settings.home.mkdir(mode=0o700, exist_ok=True)
        gang = Gang(home.settings, folder, count=2)
        stop_file = folder / "stop"
        try:
            _reserve(gang)
            environment = {"STOP_FILE": str(stop_file)}
            watches = [gang.start(PROGRAM, replica=number, environment=environment) for number in range(2)]
            checkpoints = gang.folder / "replica-0" / "generation-1" / "checkpoints"
            wait_for(checkpoints.is_dir, "the first replica")
            nvml.write([*WORKING, *TAKEN])
            write_checkpoint(checkpoints / "model-100")
            yield Installation(airflow, gang, stop_file)
            nvml.write([*FREE, *TAKEN])  # else the GPUs count as used by what is left of the replicas
            stop_file.touch()
            for watch in watches:
                watch.end()
        finally:
            if pid := gang.supervisor_pid():
                kill(pid, signal.SIGTERM)
            airflow.parts["api-server"].stop(deadline_seconds=10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert path, "Chromium is missing: scripts/test installs it, or CHROMIUM says where it is"
    expect.set_options(timeout=DEADLINE_MS)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, chromium_sandbox=os.geteuid() != 0)
        yield found
        found.close()


def open_context(installation: Installation, browser: Browser, login: StorageState | None = None) -> BrowserContext:
    context = browser.new_context(base_url=installation.airflow.url, storage_state=login)
    context.set_default_timeout(DEADLINE_MS)
    return context


@pytest.fixture(scope="module")
def login(installation: Installation, browser: Browser) -> StorageState:
    """What the browser keeps of a login through Airflow's form."""
    context = open_context(installation, browser)
    page = context.new_page()
    page.goto("/")
    page.get_by_label("Username").fill("admin")
    page.locator("input[type=password]").fill(installation.password)
    page.locator("button[type=submit]").click()
    page.wait_for_url(lambda url: "/auth/login" not in url)
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture
def page(installation: Installation, browser: Browser, login: StorageState) -> Iterator[Page]:
    """A page of a signed-in user; the test fails if anything complains on the console."""
    complaints: list[str] = []
    context = open_context(installation, browser, login)
    opened = context.new_page()
    opened.on("console", lambda message: message.type in {"error", "warning"} and complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    context.close()
    assert not complaints


def shows(where: Page | Locator, text: str) -> None:
    expect(where.get_by_text(text).first).to_be_visible()


def test_devices_are_shown_with_who_holds_them_and_who_waits(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="Devices").click()
    shows(page, "6 devices, 2 free")
    held = page.locator(".tf-tile", has_text="GPU-1")
    shows(held, "8.0 GiB of 40.0 GiB")
    shows(held, "71 %")
    shows(page.locator(".tf-tile", has_text="GPU-3"), "remapping of a bad memory row failed")
    waiting = page.get_by_role("row", name="dag / later / train")
    shows(waiting, "0 of 2 devices free; GPU-0 held by dag / run / train[0]")
    page.get_by_role("searchbox").fill("later")
    shows(page, "No device is like that.")
    page.get_by_role("button", name="Show all").click()
    page.get_by_role("button", name="3 busy").click()
    expect(page.locator(".tf-tile")).to_have_count(3)
    held.get_by_role("link", name="dag / run / train[1]").click()
    page.wait_for_url("**/dags/dag/runs/run/plugin/tf-training")
    shows(page, "2 replicas, 2 running")


def test_a_training_is_followed_while_it_runs_and_only_what_is_new_is_asked_for(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: "/curves?" in request.url and asked.append(request.url))
    page.goto("/dags/dag/runs/run/plugin/tf-training")
    replicas = page.get_by_role("table", name="Replicas")
    expect(replicas.get_by_role("row", name="replica 1")).to_contain_text("slowest")
    chart = page.get_by_role("img", name="loss: replica 0")
    first = chart.get_attribute("aria-label")
    assert first is not None
    expect(chart).not_to_have_attribute("aria-label", first)
    expect(chart.locator("canvas")).to_be_visible()
    assert asked[0].endswith("&after=0:&after=1:")
    assert re.search(r"&after=0:1\.1\.\d+&after=1:1\.1\.\d+$", asked[-1])
    shows(page.get_by_role("table", name="Session config"), "tf.config.experimental.set_memory_growth")
    shows(page, "41 operations")
    shows(page, "3 tensors")
    shows(page.get_by_role("table", name="Checkpoints"), "model-100")


def test_a_task_instance_shows_its_replica_and_the_keyboard_chooses_others(page: Page) -> None:
    page.goto("/dags/dag/runs/run/tasks/train/mapped/1/plugin/tf-training-task")
    expect(page.get_by_role("heading", name="Replica 1")).to_be_visible()
    expect(page.get_by_role("checkbox", name="Curve of replica 0")).not_to_be_checked()
    page.get_by_role("button", name="replica 0").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Replica 0")).to_be_visible()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    expect(page.get_by_role("img", name="loss: replica 0")).to_be_visible()


def test_a_trial_is_named_by_its_arguments(installation: Installation, page: Page) -> None:
    home = installation.airflow.home
    page.goto("/dags/dag/runs/run/tasks/train/mapped/1/plugin/tf-training-task")
    replicas = page.get_by_role("table", name="Replicas")
    row = replicas.get_by_role("row", name="replica 1")
    expect(row).to_be_visible()
    try:
        _call(home, 0, "replica 0")
        _call(home, 1, "rate=0.1 layers=<b>2</b>")
        expect(row).to_contain_text("replica 1 rate=0.1 layers=<b>2</b>")  # seen without a reload
        expect(page.get_by_role("heading", name="Replica 1 · rate=0.1 layers=<b>2</b>")).to_be_visible()
        expect(page.locator(".u-legend").first).to_contain_text("rate=0.1 layers=<b>2</b>")
        expect(replicas.get_by_role("row", name="replica 0").get_by_role("cell").nth(1)).to_have_text("replica 0")
        page.get_by_role("button", name="replica 0").click()
        expect(page.get_by_role("heading", name="Replica 0", exact=True)).to_be_visible()
    finally:
        _call(home, 0, None)
        _call(home, 1, None)


def test_the_pages_follow_the_dark_mode_of_airflow(page: Page) -> None:
    page.goto("/dags/dag/runs/run/plugin/tf-training")
    chart = page.locator(".tf-chart canvas")
    expect(chart).to_be_visible()
    text_colour = "getComputedStyle(document.querySelector('.tf-page')).color"
    light = page.evaluate(text_colour)
    page.evaluate("globalThis.lightChart = document.querySelector('.tf-chart canvas')")
    page.evaluate("document.documentElement.classList.replace('light', 'dark')")
    assert page.evaluate(text_colour) != light
    page.wait_for_function("!globalThis.lightChart.isConnected")  # a canvas has its colours from when it was made
    expect(chart).to_be_visible()


def test_what_a_run_has_published_is_shown(installation: Installation, page: Page) -> None:
    page.goto("/dags/dag/runs/run/plugin/tf-training")
    shows(page, "This run has published nothing.")
    _publish(installation.airflow.home, "run")
    page.reload()
    published = page.get_by_role("region", name="Published")
    shows(published, "file:///models/v=1")
    shows(published, "of step 1,200")
    shows(published, "12.5000")


def test_a_run_that_trains_nothing_says_so(installation: Installation, page: Page) -> None:
    installation.airflow.trigger("dag", "idle")
    page.goto("/dags/dag/runs/idle/plugin/tf-training")
    shows(page, "Nothing has been trained in this run.")


def test_what_goes_wrong_is_told_and_what_was_seen_stays(
    installation: Installation, browser: Browser, login: StorageState
) -> None:
    context = open_context(installation, browser, login)
    page = context.new_page()  # its console complains, as it must
    page.goto("/plugin/tf-devices")
    shows(page, "6 devices, 2 free")
    page.route("**/airflow_tf/devices", lambda route: route.abort())
    shows(page.get_by_role("alert"), "The API server does not answer.")
    shows(page, "6 devices, 2 free")
    page.unroute("**/airflow_tf/devices")
    page.route("**/airflow_tf/devices", lambda route: route.fulfill(status=403))
    shows(page.get_by_role("alert"), "You have no permission to read this.")
    context.close()


def test_a_thousand_devices_are_drawn_and_searched(page: Page) -> None:
    devices = [
        {
            "host": f"gpu{number // 8:03}",
            "uuid": f"GPU-{number:04}",
            "kind": "gpu",
            "name": "NVIDIA H100",
            "state": "free",
            "memory_bytes": 80 * GIB,
            "free_bytes": 80 * GIB,
            "utilization_percent": 0,
            "reason": "",
            "holders": [],
        }
        for number in range(1000)
    ]
    answer = {"hosts": [], "devices": devices, "queue": [], "problem": ""}
    page.route("**/airflow_tf/devices", lambda route: route.fulfill(json=answer))
    page.goto("/plugin/tf-devices")
    expect(page.locator(".tf-tile")).to_have_count(1000)
    page.get_by_role("searchbox").fill("gpu124 gpu-0999")
    expect(page.locator(".tf-tile")).to_have_count(1)


def test_who_has_not_signed_in_sees_the_login(installation: Installation, browser: Browser) -> None:
    context = open_context(installation, browser)
    page = context.new_page()
    page.goto("/plugin/tf-devices")
    page.wait_for_url(re.compile("/auth/login"))
    expect(page.locator(".tf-page")).to_have_count(0)
    context.close()
