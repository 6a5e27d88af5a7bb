"""Faults from end to end: each ends in one clear error, with nothing published, reserved or running.

Runs ``dag.test()`` in this process, since starting Airflow anew for each fault would take minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted
from airflow_tf.hooks.settings import load_settings
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.pipeline.build import load_dag
from airflow_tf.pipeline.errors import InvalidDeclarationError
from airflow_tf.supervisor.acquire import acquire
from airflow_tf.testing.hdfs import HdfsCluster
from tests.supervisor.processes import supervisor_of

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_database", "no_processes_left")]

DECLARATION = """\
dag_id: {dag_id}
inputs:
  data: {source}
devices: {{count: 2, kind: cpu, timeout: 2s, poke_interval: 0.5s}}
train:
  entrypoint: train.py
  start_method: spawn
  retries: 0
  kill_grace_seconds: 1
checkpoints:
  publish: {store}
"""
GOOD = """\
import os, struct
from airflow_tf.core.checkpoint import BundleWriter, Entry
with BundleWriter(os.environ["AIRFLOW_TF_CHECKPOINT_DIR"] + "/ck-1") as writer:
    writer.add(b"weight", Entry(1, (1,), 0, 0, 4, 0), [struct.pack("<f", float(os.environ["AIRFLOW_TF_REPLICA"]))])
    writer.commit()
"""


class Case:
    """One declaration with its program, data and destination."""

    def __init__(self, folder: Path, dag_id: str, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.dag_id, self._capfd = folder, dag_id, capfd
        self.store = folder / "store"
        self.data = folder / "data"
        self.data.mkdir()
        (self.data / "part-0.csv").write_text("1,2\n")
        self.source = (self.data / "*.csv").as_uri()
        self.program = GOOD
        self.changes: list[tuple[str, str]] = []

    def change(self, old: str, new: str) -> None:
        self.changes.append((old, new))

    def run(self) -> tuple[str, str]:
        """Run the DAG; return the run's state and everything that was logged."""
        from airflow.models.dagbundle import DagBundleModel
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.serialization.definitions.dag import SerializedDAG
        from airflow.serialization.serialized_objects import LazyDeserializedDAG
        from airflow.utils.session import create_session

        (self.folder / "train.py").write_text(self.program)
        text = DECLARATION.format(dag_id=self.dag_id, source=self.source, store=self.store.as_uri())
        for old, new in self.changes:
            assert old in text
            text = text.replace(old, new)
        file = self.folder / f"{self.dag_id}.tf.yaml"
        file.write_text(text)
        dag = load_dag(file)
        dag.fileloc = str(file)
        with create_session() as session:
            if not session.get(DagBundleModel, "testing"):
                session.add(DagBundleModel(name="testing"))
        with create_session() as session:
            SerializedDAG.bulk_write_to_db("testing", None, [dag], session=session)
            SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), bundle_name="testing", session=session)
        state = str(dag.test().state)
        captured = self._capfd.readouterr()
        return state, captured.out + captured.err

    def published(self) -> list[Path]:
        return list(self.store.rglob("*")) if self.store.exists() else []


@pytest.fixture
def case(tmp_path: Path, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> Iterator[Case]:
    made = Case(tmp_path, f"fault_{abs(hash(request.node.name))}", capfd)
    yield made
    for folder in (load_settings().home / "runs").glob(f"{made.dag_id}--*/train--*"):
        lingering = supervisor_of(folder)  # where one of two replicas never came, it waits a minute for it
        if lingering is not None:
            os.kill(lingering, signal.SIGTERM)
    assert LedgerReader(open_ledger(load_settings())).reservations() == []
    shutil.rmtree(made.store, ignore_errors=True)


def assert_fails_with(case: Case, *texts: str) -> None:
    state, log = case.run()
    assert state == "failed"
    missing = [text for text in texts if text not in log]
    assert not missing, f"not said: {missing}\n{log[-6000:]}"
    assert case.published() == []


def test_without_a_fault_the_run_publishes(case: Case) -> None:
    state, log = case.run()
    assert state == "success", log[-6000:]
    assert {path.name for path in case.published()} >= {"_SUCCESS", "manifest.json", "model.index"}


def test_a_missing_input(case: Case) -> None:
    case.source = "file:///no/such/folder/part-0.csv"
    assert_fails_with(case, "/no/such/folder/part-0.csv")


def test_an_empty_glob(case: Case) -> None:
    case.source = (case.data / "*.parquet").as_uri()
    assert_fails_with(case, "*.parquet")


def test_a_folder_without_data(case: Case) -> None:
    (case.data / "part-0.csv").unlink()
    (case.data / "_SUCCESS").touch()
    case.source = case.data.as_uri()
    assert_fails_with(case, "0 data files although _SUCCESS exists")


def test_a_name_node_that_is_down(case: Case) -> None:
    case.source = "hdfs://127.0.0.1:1/data/*.csv"
    assert_fails_with(case, "hdfs://127.0.0.1:1")


@pytest.mark.hdfs
def test_an_unreadable_folder(case: Case, hdfs_cluster: HdfsCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    import hdfs_native

    client = hdfs_native.Client(hdfs_cluster.uri)
    client.mkdirs("/secret", permission=0o700)
    with client.create("/secret/part-0.csv") as file:
        file.write(b"1,2\n")
    monkeypatch.setenv("AIRFLOW_CONN_ALICE", '{"conn_type": "hdfs_native", "login": "alice"}')
    case.source = f"{hdfs_cluster.uri}/secret"
    case.change("inputs:", "hdfs_conn_id: alice\ninputs:")
    assert_fails_with(case, "/secret", "alice")


def test_a_program_that_raises(case: Case) -> None:
    case.program = "raise ValueError('no such column: dep_delay')"
    assert_fails_with(case, "exit code 1", "no such column: dep_delay")


def test_a_program_that_leaves_no_checkpoint(case: Case) -> None:
    case.program = "print('trained, but saved nothing')"
    assert_fails_with(case, "left no complete checkpoint")


def test_a_killed_replica(case: Case) -> None:
    case.program = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    assert_fails_with(case, "killed by SIGKILL")


def test_a_killed_replica_with_a_retry_left(case: Case) -> None:
    case.program = (
        "import os, signal\nif os.environ['AIRFLOW_TF_ATTEMPT'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n" + GOOD
    )
    case.change("retries: 0", "retries: 1\n  retry_delay: 1s")
    state, log = case.run()
    assert state == "success", log[-6000:]


def test_more_replicas_than_devices(case: Case) -> None:
    case.change("count: 2", "count: 5")
    assert_fails_with(case, "5 devices of kind cpu", "has 2")


def test_devices_that_somebody_else_holds(case: Case) -> None:
    settings = load_settings()
    ledger = open_ledger(settings)
    other = GangKey(ledger.ledger_id, "other_dag", "its_run", "train")
    granted = acquire(ledger, settings, other, DeviceRequest("cpu"), [0, 1])
    assert isinstance(granted, Granted)
    try:
        assert_fails_with(case, "other_dag / its_run / train")
    finally:
        for member in granted.members:
            ledger.release(member)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("{gpu_options: {per_process_gpu_memory_fraction: '{{ 3 / 2 }}'}}", "per_process_gpu_memory_fraction"),
        ("{allow_soft_placement: '{{ dag_run.nope }}'}", "no attribute 'nope'"),
    ],
)
def test_a_session_config_that_is_wrong_only_when_rendered(case: Case, config: str, text: str) -> None:
    case.change("start_method: spawn", f"start_method: spawn\n  session_config: {config}")
    assert_fails_with(case, text)


def test_an_unknown_session_config_field(case: Case) -> None:
    case.change("start_method: spawn", "start_method: spawn\n  session_config: {log_device_placment: true}")
    with pytest.raises(InvalidDeclarationError, match="log_device_placement"):
        case.run()


def test_a_name_that_is_missing_only_when_rendered(case: Case) -> None:
    case.change("start_method: spawn", "start_method: spawn\n  arguments: {epochs: '{{ dag_run.epoch }}'}")
    assert_fails_with(case, "no attribute 'epoch'")


def test_a_param_that_is_not_declared(case: Case) -> None:
    case.change("start_method: spawn", "start_method: spawn\n  arguments: {epochs: '{{ params.epoch }}'}")
    with pytest.raises(InvalidDeclarationError, match="there is no param 'epoch'"):
        case.run()


def test_a_script_that_vanished_after_parsing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_tf.operators import replica

    original = replica.ReplicaOperator._stage

    def vanish(*args: object, **kwargs: object) -> object:
        (case.folder / "train.py").unlink()
        return original(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(replica.ReplicaOperator, "_stage", vanish)
    assert_fails_with(case, "train.py", "does not exist")


GANG = GOOD.replace(
    "import os, struct\n",
    "import json, os, struct, time\n"
    "config = json.loads(os.environ['TF_CONFIG'])\n"
    "print('I am', config['task']['type'], config['task']['index'], flush=True)\n"
    "replica = os.environ['AIRFLOW_TF_REPLICA']\n",
)


def test_a_gang_trains_as_one_and_its_chiefs_checkpoint_is_published(case: Case) -> None:
    case.program = GANG
    case.change("  entrypoint", "  strategy: sync\n  entrypoint")
    state, log = case.run()
    assert state == "success"
    assert "I am worker 0" in log
    assert log.count("I am worker 1") == 1  # its own task came when the gang had ended
    (manifest,) = [path for path in case.published() if path.name == "manifest.json"]
    assert json.loads(manifest.read_text())["origin"]["candidate"] == "replica-0"


def test_the_error_of_one_member_fails_the_gang_with_its_cause_and_starts_it_once(case: Case) -> None:
    case.program = GANG + "if replica == '1': raise ValueError('no such column: dep_delay')\ntime.sleep(300)\n"
    case.change("  entrypoint", "  strategy: sync\n  entrypoint")
    case.change("  retries: 0", "  retries: 2\n  retry_delay: 1s")
    state, log = case.run()
    assert state == "failed"
    assert "ended because worker 1 failed" in log
    assert "no such column: dep_delay" in log
    runs = (load_settings().home / "runs").glob(f"{case.dag_id}--*")
    attempts = [path.name for run in runs for path in run.glob("train--*/replica-*/generation-*/attempt-*")]
    assert attempts == ["attempt-1", "attempt-1"]  # neither a retry nor the sibling's task starts it again
    assert case.published() == []


def test_a_worker_that_is_not_required_ends_skipped_and_the_rest_is_published(case: Case) -> None:
    case.program = GANG + "if replica == '1': time.sleep(1); raise SystemExit(3)\n"
    case.change("  entrypoint", "  strategy: sync\n  success: chief\n  entrypoint")
    state, log = case.run()
    assert state == "success"
    assert "Its success is not required by success: chief" in log
    assert [path for path in case.published() if path.name == "_SUCCESS"]


LOSES_ITS_CHECKPOINTS = """\
import glob, os, signal, struct, time
from airflow_tf.core.checkpoint import BundleWriter, Entry
folder, resume = os.environ["AIRFLOW_TF_CHECKPOINT_DIR"], os.environ.get("AIRFLOW_TF_RESUME_FROM")
with BundleWriter(f"{folder}/ck-{2 if resume else 1}") as writer:
    writer.add(b"weight", Entry(1, (1,), 0, 0, 4, 0), [struct.pack("<f", 1.0)])
    writer.commit()
print("went on from", resume, flush=True)
if not resume:
    copy = "STORE/.airflow_tf-runs/*/*/replica-" + os.environ["AIRFLOW_TF_REPLICA"] + "/*/*-ck-1"
    while not glob.glob(copy):
        time.sleep(0.05)
    for name in os.listdir(folder):
        os.unlink(f"{folder}/{name}")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_training_whose_checkpoints_are_lost_goes_on_from_the_copies_at_the_destination(case: Case) -> None:
    case.program = LOSES_ITS_CHECKPOINTS.replace("STORE", str(case.store))
    case.change("  retries: 0\n", "  retries: 1\n  retry_delay: 1s\n")
    case.change("checkpoints:\n", "checkpoints:\n  upload_every: 1s\n")
    state, log = case.run()
    assert state == "success", log[-6000:]
    assert log.count("goes on from a copy newer than what this host has") == 2
    assert "went on from /" in log
    assert {path.name for path in case.published()} >= {"_SUCCESS", "manifest.json"}
