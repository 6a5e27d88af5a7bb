"""What Airflow shows of one run, asked of Airflow itself: links, rendered fields, forms, options, spans, lineage."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from airflow_tf.provider_info import get_provider_info
from tests.airflow.home import AirflowHome
from tests.airflow.running import RunningAirflow
from tests.supervisor.harness import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

DAG = """\
from airflow.sdk import DAG

from airflow_tf.operators.train import TensorFlowTrainOperator
from airflow_tf.sensors.devices import DeviceAvailabilitySensor
from airflow_tf.transfers.hdfs_to_local import HdfsToLocalOperator

with DAG("seen", schedule=None, params={{"threads": 3}}):
    stage = HdfsToLocalOperator(task_id="stage", source="{data}")
    reserve = DeviceAvailabilitySensor(task_id="reserve", for_task="train", kind="cpu", timeout=600)
    train = TensorFlowTrainOperator.partial(
        task_id="train",
        entrypoint="train.py",
        arguments={{"gate": "{gate}"}},
        session_config={{"intra_op_parallelism_threads": "{{{{ params.threads }}}}"}},
        kind="cpu",
        start_method="spawn",
        require_checkpoint=False,
    ).expand(replica=[0, 1])
    stage >> reserve >> train
"""
PROGRAM = """\
import argparse, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--gate", type=pathlib.Path)
gate = parser.parse_args().gate
while not gate.exists():
    time.sleep(0.2)
"""
INSTANCES = "/api/v2/dags/seen/dagRuns/r/taskInstances"


class Collector:
    """Receives what OpenTelemetry's exporters send, as a collector does."""

    def __init__(self) -> None:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/traces":
                    collector.traces.append(ExportTraceServiceRequest.FromString(body))
                else:
                    collector.metrics.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Write nothing into the output of the tests."""

        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self) -> dict[str, dict[str, Any]]:
        """Attributes of our spans, by their names."""
        return {
            span.name: {each.key: _value(each.value) for each in span.attributes}
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if span.name.startswith("airflow_tf.")
        }

    def names(self) -> set[str]:
        """Names of the metrics received."""
        return {
            metric.name
            for request in self.metrics
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[RunningAirflow]:
    home = AirflowHome(tmp_path_factory.mktemp("surfaces"), "unused")
    for folder in (home.dags, home.folder / "locks", home.folder / "data"):
        folder.mkdir()
    (home.folder / "data" / "part-0.csv").write_text("1,2\n")
    gate, data = home.folder / "gate", (home.folder / "data").as_uri()
    (home.dags / "seen.py").write_text(DAG.format(gate=gate, data=data))
    (home.dags / "train.py").write_text(PROGRAM)
    (home.dags / ".airflowignore").write_text("train.py\n")
    home.extra |= {
        "AIRFLOW__TRACES__OTEL_ON": "True",
        "AIRFLOW__METRICS__OTEL_ON": "True",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_TRACES_EXPORTER": "otlp_proto_http",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
            {"type": "file", "log_file_path": str(home.folder / "lineage.jsonl"), "append": True}
        ),
        "AIRFLOW__AIRFLOW_TF__TENSORBOARD_URL": "https://tensorboard.example.com/?runFilter={folder}",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
    }
    home.run("db", "migrate")
    running = RunningAirflow(home)
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def run(airflow: RunningAirflow) -> dict[str, Any]:
    """Answers of Airflow while both replicas trained; they have ended since."""
    airflow.trigger("seen", "r")

    def running() -> bool:
        rows = [row for row in airflow.instances("seen", "r") if row["task_id"] == "train"]
        return len(rows) == 2 and all(row["state"] == "running" for row in rows)

    wait_for(running, "both replicas", 180, 0.5)

    def links() -> Any:
        return airflow.request("GET", f"{INSTANCES}/train/links?map_index=1")["extra_links"]

    wait_for(lambda: links()["Training"], "links of a task that runs", 60, 0.5)
    found = {"links": links(), "fields": airflow.request("GET", f"{INSTANCES}/train/1")["rendered_fields"]}
    (airflow.home.folder / "gate").touch()
    assert airflow.wait_run("seen", "r") == "success"
    return found


def test_the_links_of_a_replica_answer_while_it_trains(airflow: RunningAirflow, run: dict[str, Any]) -> None:
    page = f"{airflow.url}/dags/seen/runs/r/tasks/train/mapped/1/plugin/tf-training-task"
    assert run["links"]["Training"] == page
    assert run["links"]["TensorBoard"].startswith("https://tensorboard.example.com/?runFilter=seen--r--")
    after = airflow.request("GET", f"{INSTANCES}/train/links?map_index=1")["extra_links"]
    assert after == run["links"]
    assert airflow.request("GET", f"{INSTANCES}/stage/links")["extra_links"] == {"HDFS": None}


def test_the_rendered_session_config_is_shown(airflow: RunningAirflow, run: dict[str, Any]) -> None:
    assert json.loads(json.dumps(run["fields"]["session_config"])) == {"intra_op_parallelism_threads": "3"}
    shown = airflow.home.run("tasks", "render", "seen", "train", "r", "--map-index", "1").stdout
    assert "intra_op_parallelism_threads" in shown
    assert "params.threads" not in shown


@pytest.mark.usefixtures("run")
def test_spans_and_metrics_reach_a_collector(airflow: RunningAirflow, collector: Collector) -> None:
    steps = {"airflow_tf.stage", "airflow_tf.reserve", "airflow_tf.train"}
    wait_for(lambda: steps <= set(collector.spans()), "the spans", 60, 0.5)
    stage, train = collector.spans()["airflow_tf.stage"], collector.spans()["airflow_tf.train"]
    assert (stage["dag_id"], stage["outcome"], stage["files"], stage["copied_bytes"]) == ("seen", "done", 1, 4)
    assert stage["source"] == (airflow.home.folder / "data").as_uri()
    assert (train["task_id"], train["outcome"]) == ("train", "done")
    timings = {f"airflow.{step}.duration" for step in steps}
    wait_for(lambda: {*timings, "airflow.airflow_tf.stage.files"} <= collector.names(), "the metrics", 60, 0.5)


@pytest.mark.usefixtures("run")
def test_openlineage_is_told_what_was_read_and_where_it_is(airflow: RunningAirflow) -> None:
    def events() -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in (airflow.home.folder / "lineage.jsonl").read_text().splitlines()]
        return [row for row in rows if row["job"]["name"] == "seen.stage" and row["eventType"] == "COMPLETE"]

    wait_for(events, "the event of the staging task", 60, 0.5)
    (event,) = events()
    (source,), (copy,) = event["inputs"], event["outputs"]
    assert source["name"] == str(airflow.home.folder / "data")
    facet = source["inputFacets"]["inputStatistics"]
    assert (facet["size"], facet["fileCount"]) == (4, 1)
    assert copy["name"].startswith(str(airflow.home.settings.home / "runs"))


def test_the_form_of_the_connection_is_in_the_interface(airflow: RunningAirflow) -> None:
    (form,) = [
        row for row in airflow.request("GET", "/ui/connections/hook_meta") if row["connection_type"] == "hdfs_native"
    ]
    assert set(form["extra_fields"]) == set(get_provider_info()["connection-types"][0]["conn-fields"])
    assert form["standard_fields"]["host"]["title"] == "NameNodes or name service"
    assert form["standard_fields"]["url_schema"]["hidden"]


def test_a_connection_is_tested_from_the_interface_and_says_what_is_wrong(airflow: RunningAirflow) -> None:
    body = {"connection_id": "dead", "conn_type": "hdfs_native", "host": "127.0.0.1", "port": 1}
    answer = airflow.request("POST", "/api/v2/connections/test", body)
    assert answer["status"] is False
    assert "127.0.0.1:1" in answer["message"]


def test_the_options_are_listed_with_what_is_set(airflow: RunningAirflow) -> None:
    shown = airflow.home.run("config", "list", "--section", "airflow_tf", "--include-descriptions").stdout
    for name in get_provider_info()["config"]["airflow_tf"]["options"]:
        assert f"\n{name} = " in shown or f"\n# {name} = " in shown, name
    assert "TensorBoard over the folder" in shown
