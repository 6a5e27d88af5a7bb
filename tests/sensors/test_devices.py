"""The sensor reserves for the training task, waits saying by whom devices are held, and fails at once where no wait helps."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.errors import LedgerUnavailableError, StorageUnavailableError
from airflow_tf.core.identity import GangKey
from airflow_tf.hooks.devices import DEVICE_FIELDS
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.sensors import devices as module
from airflow_tf.sensors.devices import DeviceAvailabilitySensor
from airflow_tf.supervisor.acquire import acquire


class Train(BaseOperator):
    """Stands for a training task: only its mapping is read."""

    def __init__(self, *, replica=0, **kwargs):
        super().__init__(**kwargs)
        self.replica = replica


@pytest.fixture(autouse=True)
def _private_settings(settings, monkeypatch):
    monkeypatch.setattr(module, "load_settings", lambda: settings)


@pytest.fixture
def all_busy(ledger, settings):
    """Both CPU slots are held by another run."""
    key = GangKey(ledger.ledger_id, "churn", "run 12", "train")
    return acquire(ledger, settings, key, DeviceRequest(), [0, 1])


def sensor(replicas=(0, 1), **arguments):
    with DAG("flights", schedule=None):
        Train.partial(task_id="train").expand(replica=list(replicas))
        return DeviceAvailabilitySensor(task_id="reserve", for_task="train", **arguments)


def context_of(task):
    ti = SimpleNamespace(
        dag_id="flights", run_id="run x", task_id=task.task_id, id="ti", try_number=1, max_tries=0, map_index=-1
    )
    ti.get_first_reschedule_date = lambda _: None
    return {"ti": ti, "task": task, "dag": task.dag, "run_id": "run x"}


def run(task):
    return task.execute(context_of(task))


def listen(task, on_line):
    """Airflow's task log goes through structlog; read it at the operator."""
    task._cached_logger = SimpleNamespace(info=lambda text, *args: on_line(text % args), warning=lambda *_: None)


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_reserves_for_every_literal_replica_of_the_training_task(ledger, mode):
    xcom = run(sensor(mode=mode))
    assert xcom == {"reservation_id": 1, "ledger_id": ledger.ledger_id, "devices": {"0": ["cpu-0"], "1": ["cpu-1"]}}
    key = GangKey(ledger.ledger_id, "flights", "run x", "train")
    assert [device.uuid for device in ledger.member(key, 1).devices] == ["cpu-1"]


def test_a_second_look_keeps_the_first_reservation(ledger):
    assert run(sensor()) == run(sensor())
    assert len(LedgerReader(ledger).reservations()) == 2


def test_where_it_holds_nothing_the_devices_are_free_again_but_for_those_in_use(ledger):
    key = GangKey(ledger.ledger_id, "flights", "run x", "train")
    assert run(sensor(hold=False))["devices"] == {"0": ["cpu-0"], "1": ["cpu-1"]}
    assert [ledger.member(key, number) for number in (0, 1)] == [None, None]
    run(sensor())
    ledger.confirm(ledger.member(key, 0), os.getpid())
    run(sensor(hold=False))
    assert ledger.member(key, 0).state == "confirmed"
    assert ledger.member(key, 1) is None


def test_count_wins_over_the_mapping_and_may_be_rendered_text():
    assert run(sensor(count="1"))["devices"] == {"0": ["cpu-0"]}


def test_several_devices_per_replica():
    assert run(sensor(replicas=[0], per_replica="2", kind="cpu"))["devices"] == {"0": ["cpu-0", "cpu-1"]}


def test_an_unmapped_training_task_is_one_replica():
    with DAG("flights", schedule=None):
        Train(task_id="train")
        task = DeviceAvailabilitySensor(task_id="reserve", for_task="train")
    assert run(task)["devices"] == {"0": ["cpu-0"]}


def test_the_deadline_names_the_holders_and_nothing_stays_reserved(ledger, all_busy):
    task = sensor(timeout=0, poke_interval=0)
    lines = []
    listen(task, lines.append)
    with pytest.raises(AirflowSensorTimeout) as caught:
        run(task)
    for uuid, replica in (("cpu-0", 0), ("cpu-1", 1)):
        assert f"{uuid} held by churn / run 12 / train[{replica}] since" in str(caught.value)
    assert lines[0].startswith("0 of 2 devices free; cpu-0 held by churn / run 12 / train[0]")
    assert {row.gang_label for row in LedgerReader(ledger).reservations()} == {"churn / run 12 / train"}


def test_while_waiting_one_line_per_look_and_success_when_the_holder_is_gone(ledger, all_busy):
    task = sensor(poke_interval=0, timeout=60)
    looks = []

    def look(line):
        looks.append(line)
        if len(looks) == 3:
            for member in all_busy.members:
                ledger.release(member)

    listen(task, look)
    assert run(task)["devices"] == {"0": ["cpu-0"], "1": ["cpu-1"]}
    assert [line.partition(";")[0] for line in looks[:3]] == ["0 of 2 devices free"] * 3


def test_half_of_what_it_needs_is_left_to_others(ledger, settings, all_busy):
    ledger.release(all_busy.members[0])
    with pytest.raises(AirflowSensorTimeout, match="1 of 2 devices free"):
        run(sensor(timeout=0, poke_interval=0))
    other = acquire(ledger, settings, GangKey(ledger.ledger_id, "other", "r", "train"), DeviceRequest(), [0])
    assert other.members[0].devices[0].uuid == "cpu-0"


def test_reschedule_mode_holds_no_slot(all_busy):
    with pytest.raises(AirflowRescheduleException):
        run(sensor(mode="reschedule", timeout=60, poke_interval=30))


def test_soft_fail_skips_and_names_the_holders(all_busy):
    with pytest.raises(AirflowSkipException, match="held by churn / run 12"):
        run(sensor(soft_fail=True, timeout=0, poke_interval=0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"replicas": range(8)}, "wants 8 devices of kind cpu.* has 2"),
        ({"kind": "gpu"}, "wants 2 devices of kind gpu.* has 0"),
        ({"kind": "tpu"}, "unknown device kind 'tpu'"),
        ({"count": "many"}, "count: 'many' is not an integer"),
        ({"count": 0}, "count: 0 is too small"),
        ({"count": True}, "count: True is not an integer"),
        ({"per_replica": "1.5"}, "per_replica: '1.5' is not an integer"),
        ({"min_free_memory": "lots"}, "'lots' is not a size"),
    ],
)
def test_what_no_wait_can_help_fails_at_once_without_retry(arguments, words):
    with pytest.raises(AirflowFailException, match=words):
        run(sensor(**arguments))


def test_an_unknown_training_task_is_named_with_those_there_are():
    with DAG("flights", schedule=None):
        task = DeviceAvailabilitySensor(task_id="reserve", for_task="trian")
    with pytest.raises(AirflowFailException, match=r"no task 'trian'.*reserve"):
        run(task)


def test_a_mapping_that_is_not_literal_needs_a_count():
    with DAG("flights", schedule=None):
        first = Train(task_id="first")
        Train.partial(task_id="train").expand(replica=first.output)
        task = DeviceAvailabilitySensor(task_id="reserve", for_task="train")
    with pytest.raises(AirflowFailException, match="Give count"):
        run(task)


def test_a_look_that_the_ledger_does_not_answer_is_no_failure(monkeypatch):
    looks = []

    def answer_later(settings):
        looks.append(settings)
        if len(looks) == 1:
            raise LedgerUnavailableError("the ledger does not answer")
        return open_ledger(settings)

    monkeypatch.setattr(module, "open_ledger", answer_later)
    assert set(run(sensor(poke_interval=0.01))["devices"]) == {"0", "1"}


def test_the_demands_are_template_fields():
    task = sensor(count="{{ params.n }}", timeout=timedelta(minutes=1))
    assert set(task.template_fields) == {"count", "publish", *DEVICE_FIELDS}
    task.render_template_fields({"params": {"n": 1}})
    assert run(task)["devices"] == {"0": ["cpu-0"]}


@pytest.mark.airflow
@pytest.mark.usefixtures("airflow_database")
def test_runs_in_a_dag_and_leaves_its_xcom(caplog):
    """Through Airflow itself: templates, XCom, states."""
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.sdk import task
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.utils.session import create_session

    seen = {}

    @task
    def read(reserved):
        seen.update(reserved)

    with DAG("reserving", schedule=None, params={"n": 2}) as dag:
        reserve = DeviceAvailabilitySensor(task_id="reserve", for_task="train", count="{{ params.n }}")
        read(reserve.output)
    caplog.set_level(logging.WARNING)
    with create_session() as session:
        if not session.get(DagBundleModel, "testing"):
            session.add(DagBundleModel(name="testing"))
    with create_session() as session:
        SerializedDAG.bulk_write_to_db("testing", None, [dag], session=session)
        SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), bundle_name="testing", session=session)
    assert dag.test().state == "success"
    assert seen["devices"] == {"0": ["cpu-0"], "1": ["cpu-1"]}


@pytest.mark.parametrize(
    ("destination", "message"),
    [("file:///sys/models", "could not be published"), ("s3://bucket/models", "could not be published")],
)
def test_a_run_that_could_not_publish_its_result_fails_before_it_takes_devices(ledger, destination, message):
    with pytest.raises(AirflowFailException, match=message):
        run(sensor(publish={"destination": destination}))
    assert LedgerReader(ledger).reservations() == []


def test_a_destination_is_asked_once_in_a_run_and_again_when_it_did_not_answer(settings, tmp_path, monkeypatch):
    answers, asked = [StorageUnavailableError("no answer"), None], []

    def check(base, *, options):
        asked.append(base)
        if (answer := answers.pop(0)) is not None:
            raise answer

    monkeypatch.setattr(module, "check_destination", check)
    for _ in range(3):
        run(sensor(publish={"destination": f"file://{tmp_path}/models", "hdfs_conn_id": None}))
    assert asked == [f"file://{tmp_path}/models"] * 2
