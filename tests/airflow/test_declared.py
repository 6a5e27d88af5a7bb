"""Declarations in a running Airflow: who is told how runs end, params of a wrong type, and runs without a date."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_tf.ledger.read import LedgerReader, ReservationRow
from tests.airflow.home import AirflowHome
from tests.airflow.running import POLL_SECONDS, RunningAirflow
from tests.supervisor.harness import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

LOADER = "from airflow_tf.pipeline import load_dags\n\nload_dags(globals(), __file__)\n"
PROGRAM = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--day")
parser.add_argument("--code", type=int, default=0)
arguments = parser.parse_args()
print("the day is", arguments.day)
raise SystemExit(arguments.code)
"""
TELLERS = """\
import json, os
from airflow.sdk import BaseNotifier

def note(context, text):
    with open(os.environ["TOLD"], "a") as file:
        file.write(json.dumps([context["dag"].dag_id, __name__, text]) + "\\n")

class Notifier(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text):
        super().__init__()
        self.text = text

    def notify(self, context):
        note(context, self.text)
"""
"""As modules beside the declarations, of a package that the setting names, and of one that it does not."""

TOLD = """\
schedule: "@once"
start_date: 2026-01-01
callbacks:
  on_success:
    - {call: oncall.note, arguments: {text: "{{ dag.dag_id }} succeeded"}}
    - {call: team_alerts.Notifier, arguments: {text: "{{ run_id }} succeeded"}}
  on_failure:
    - {call: team_alerts.note, arguments: {text: "{{ dag.dag_id }} failed"}}
    - {call: oncall.Notifier, arguments: {text: "{{ run_id }} failed: {{ reason }}"}}
  on_task_success: {call: team_alerts.note, arguments: {text: "{{ ti.task_id }} succeeded"}}
  on_task_failure:
    - {call: oncall.note, arguments: {text: "{{ ti.task_id }} failed: {{ exception }}"}}
    - {call: team_alerts.Notifier, arguments: {text: "{{ ti.task_id }} failed, too"}}
"""
DECLARATIONS = {
    "told_well": TOLD,
    "told_badly": f"{TOLD}train: {{arguments: {{code: 3}}}}\n",
    "refused": "callbacks: {on_failure: {call: strangers.note, arguments: {text: x}}}\n",
    "typed": "params: {threads: {type: integer, minimum: 1, default: 2}}\n"
    "train: {session_config: {intra_op_parallelism_threads: '{{ params.threads }}'}}\n",
    "untyped": "params: {threads: '2'}\n"
    "train: {session_config: {intra_op_parallelism_threads: '{{ params.threads }}'}}\n",
    "dated": "inputs: {train: 'DATA/{{ ds }}'}\ntrain: {arguments: {day: '{{ ds }}'}}\n",
    "dated_late": "train: {arguments: {day: '{{ data_interval_start | ds }}'}}\n",
    "fed": "schedule: [file:///fed/by/others]\ntrain: {arguments: {day: \"{{ ds | default('none') }}\"}}\n",
}
COMMON = """\
devices: {kind: cpu}
train: {entrypoint: train.py, start_method: spawn, retries: 0}
checkpoints: {aggregate: none}
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAirflow]:
    home = AirflowHome(tmp_path_factory.mktemp("declared"), "unused")
    installed, data = home.folder / "installed", home.folder / "data"
    for folder in (home.dags, home.folder / "locks", installed, data / "2026-01-02"):
        folder.mkdir(parents=True)
    (data / "2026-01-02" / "part-0.csv").write_text("1,2\n")
    for name, text in DECLARATIONS.items():
        declared = f"extends: common.yaml\ndag_id: {name}\n{text}".replace("DATA", data.as_uri())
        (home.dags / f"{name}.tf.yaml").write_text(declared)
    (home.dags / "common.yaml").write_text(COMMON)
    (home.dags / "train.py").write_text(PROGRAM)
    (home.dags / ".airflowignore").write_text("train.py\noncall.py\n")
    for module in (home.dags / "oncall.py", installed / "team_alerts.py", installed / "strangers.py"):
        module.write_text(TELLERS)
    home.extra |= {
        "PYTHONPATH": str(installed),
        "AIRFLOW__AIRFLOW_TF__CALLBACKS": "team_alerts",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "1",
        "TOLD": str(home.folder / "told.jsonl"),
    }
    home.run("db", "migrate")
    running = RunningAirflow(home)
    try:
        running.start()
        (home.dags / "loader.py").write_text(LOADER)  # not before: scheduled tasks fail where no api-server answers yet
        yield running
    finally:
        running.stop()


def one_run(airflow: RunningAirflow, dag_id: str) -> dict[str, Any]:
    """Return the only run of a DAG, which nobody has triggered, as soon as it has ended."""
    airflow.wait_known(dag_id)
    path = f"/api/v2/dags/{dag_id}/dagRuns"
    (run,) = wait_for(lambda: airflow.request("GET", path)["dag_runs"], f"a run of {dag_id}", 120, POLL_SECONDS)
    airflow.wait_run(dag_id, run["dag_run_id"])
    return dict(airflow.request("GET", f"{path}/{run['dag_run_id']}"))


def told(airflow: RunningAirflow, dag_id: str, count: int) -> list[tuple[str, str]]:
    """Return who was told what of a DAG, as soon as it is ``count``."""
    file = airflow.home.folder / "told.jsonl"

    def found() -> list[tuple[str, str]]:
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return sorted((by, text) for dag, by, text in rows if dag == dag_id)

    wait_for(lambda: len(found()) >= count, f"{count} calls", 120, POLL_SECONDS)
    return found()


def reserved(airflow: RunningAirflow, dag_id: str) -> list[ReservationRow]:
    return [row for row in LedgerReader(airflow.home.ledger).reservations() if row.dag_id == dag_id]


def test_callbacks_of_the_run_and_its_tasks_are_called_once_when_a_scheduled_run_succeeds(
    airflow: RunningAirflow,
) -> None:
    run = one_run(airflow, "told_well")
    assert (run["run_type"], run["state"]) == ("scheduled", "success")
    assert told(airflow, "told_well", 4) == [
        ("oncall", "told_well succeeded"),
        ("team_alerts", "reserve_devices succeeded"),
        ("team_alerts", f"{run['dag_run_id']} succeeded"),
        ("team_alerts", "train succeeded"),
    ]


def test_callbacks_of_the_run_and_its_tasks_are_called_once_when_a_scheduled_run_fails(
    airflow: RunningAirflow,
) -> None:
    run = one_run(airflow, "told_badly")
    assert (run["run_type"], run["state"]) == ("scheduled", "failed")
    notified, (by, text), *others = told(airflow, "told_badly", 5)
    assert notified == ("oncall", f"{run['dag_run_id']} failed: task_failure")
    assert by == "oncall"
    assert text.startswith("train failed: ")
    assert "exit code 3" in text
    assert others == [
        ("team_alerts", "reserve_devices succeeded"),
        ("team_alerts", "told_badly failed"),
        ("team_alerts", "train failed, too"),
    ]


def test_a_function_of_a_package_that_the_setting_does_not_name_is_refused(airflow: RunningAirflow) -> None:
    airflow.wait_known("refused")
    shown = airflow.request("GET", "/api/v2/dags/refused/details")["doc_md"]
    assert "strangers.note is not allowed here" in shown
    assert "Let [airflow_tf] callbacks name its package" in shown


@pytest.mark.parametrize(
    ("threads", "why"), [("many", "'many' is not of type 'integer'"), (0, "0 is less than the minimum of 1")]
)
def test_a_param_of_a_wrong_value_is_refused_by_name_and_nothing_is_started(
    airflow: RunningAirflow, threads: object, why: str
) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        airflow.trigger("typed", f"wrong-{threads}", {"threads": threads})
    assert refused.value.code == 400
    assert f"Invalid input for param threads: {why}" in "".join(refused.value.__notes__)
    runs = airflow.request("GET", "/api/v2/dags/typed/dagRuns")["dag_runs"]
    assert f"wrong-{threads}" not in {run["dag_run_id"] for run in runs}
    assert reserved(airflow, "typed") == []


def test_a_bare_text_that_is_no_number_fails_where_it_is_used_and_nothing_stays_reserved(
    airflow: RunningAirflow,
) -> None:
    airflow.trigger("untyped", "wrong", {"threads": "many"})
    assert airflow.wait_run("untyped", "wrong") == "failed"
    log = airflow.log_of("untyped", "wrong", "train", 1, 0)
    assert "session_config.intra_op_parallelism_threads: must be an integer, not 'many'" in log
    assert reserved(airflow, "untyped") == []


def test_a_run_without_a_date_gets_its_params_and_succeeds(airflow: RunningAirflow) -> None:
    airflow.trigger("typed", "right", {"threads": 3})
    assert airflow.wait_run("typed", "right") == "success"
    assert airflow.request("GET", "/api/v2/dags/typed/dagRuns/right")["logical_date"] is None
    (train,) = [row for row in airflow.instances("typed", "right") if row["task_id"] == "train"]
    assert train["rendered_fields"]["session_config"] == {"intra_op_parallelism_threads": "3"}


@pytest.mark.parametrize(
    ("dag_id", "task_id", "map_index", "name"),
    [("dated", "stage.train", -1, "ds"), ("dated_late", "train", 0, "data_interval_start")],
)
def test_a_template_that_needs_a_date_says_what_to_use_in_a_run_without_one(
    airflow: RunningAirflow, dag_id: str, task_id: str, map_index: int, name: str
) -> None:
    airflow.trigger(dag_id, "undated")
    assert airflow.wait_run(dag_id, "undated") == "failed"
    log = airflow.log_of(dag_id, "undated", task_id, 1, map_index)
    assert f"'{name}' is undefined" in log
    assert "This run has no logical date" in log
    assert "Use run_id or dag_run.run_after" in log
    assert reserved(airflow, dag_id) == []


def test_the_same_template_is_rendered_in_a_run_with_a_date(airflow: RunningAirflow) -> None:
    airflow.trigger("dated", "with-a-date", logical_date="2026-01-02T00:00:00Z")
    assert airflow.wait_run("dated", "with-a-date") == "success"
    assert "the day is 2026-01-02" in airflow.log_of("dated", "with-a-date", "train", 1, 0)


def test_a_run_that_an_asset_starts_has_the_default_of_a_date(airflow: RunningAirflow) -> None:
    airflow.wait_known("fed")
    (asset,) = airflow.request("GET", "/api/v2/assets?uri_pattern=/fed/by/others")["assets"]
    airflow.request("POST", "/api/v2/assets/events", {"asset_id": asset["id"]})
    run = one_run(airflow, "fed")
    assert (run["run_type"], run["logical_date"], run["state"]) == ("asset_triggered", None, "success")
    assert "the day is none" in airflow.log_of("fed", run["dag_run_id"], "train", 1, 0)
