"""The deferrable sensor: short looks on a worker, the wait in the triggerer, one deadline over all of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted
from airflow_tf.core.settings import Settings
from airflow_tf.ledger import Ledger, open_ledger
from airflow_tf.ledger.clock import boot_clock
from airflow_tf.sensors import devices as module
from airflow_tf.sensors.devices import DeviceAvailabilitySensor
from airflow_tf.supervisor.acquire import acquire

TIMED_OUT = ("__fail__", {"error": "Trigger timeout"})


class Train(BaseOperator):
    """Stands for a training task: only its mapping is read."""

    def __init__(self, *, replica: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.replica = replica


class Time:
    """The ledger's clock, moved by hand."""

    def __init__(self) -> None:
        self.seconds = boot_clock().now()

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture(autouse=True)
def _worker(settings: Settings, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under an executor, with private settings and the clock of the test."""
    clock = dataclasses.replace(boot_clock(), now=lambda: time.seconds)
    monkeypatch.setattr(module, "load_settings", lambda: settings)
    monkeypatch.setattr(module, "runs_in_process", lambda: False)
    monkeypatch.setattr(module, "open_ledger", lambda given: open_ledger(given, clock=clock))


@pytest.fixture
def ledger(settings: Settings, time: Time) -> Iterator[Ledger]:
    opened = open_ledger(settings, clock=dataclasses.replace(boot_clock(), now=lambda: time.seconds))
    yield opened
    opened.close()


@pytest.fixture
def held(ledger: Ledger, settings: Settings) -> Granted:
    """Both CPU slots are held by another run."""
    settings = dataclasses.replace(settings, reservation_seconds=10_000)
    granted = acquire(ledger, settings, GangKey(ledger.ledger_id, "churn", "run 12", "train"), DeviceRequest(), [0, 1])
    assert isinstance(granted, Granted)
    for member in granted.members:
        ledger.confirm(member, 1)  # pid 1 lives as long as the host
    return granted


def sensor(**arguments: Any) -> DeviceAvailabilitySensor:
    with DAG("flights", schedule=None):
        Train.partial(task_id="train").expand(replica=[0, 1])
        return DeviceAvailabilitySensor(task_id="reserve", for_task="train", deferrable=True, **arguments)


def context_of(task: BaseOperator) -> Any:
    ti = SimpleNamespace(
        dag_id="flights", run_id="run x", task_id=task.task_id, id="ti", try_number=1, max_tries=0, map_index=-1
    )
    return {"ti": ti, "task": task, "dag": task.dag, "run_id": "run x"}


def run(task: DeviceAvailabilitySensor) -> Any:
    return task.execute(context_of(task))


def resume(task: DeviceAvailabilitySensor, method: str, arguments: dict[str, Any]) -> Any:
    return task.resume_execution(method, arguments, context_of(task))


def deferral(task: DeviceAvailabilitySensor) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        run(task)
    return caught.value


def waits(ledger: Ledger) -> bool:
    return ledger.look(GangKey(ledger.ledger_id, "flights", "run x", "train")) is not None


def test_what_is_free_is_reserved_without_a_deferral(ledger: Ledger) -> None:
    assert run(sensor())["devices"] == {"0": ["cpu-0"], "1": ["cpu-1"]}


@pytest.mark.usefixtures("held")
def test_it_waits_in_the_triggerer_by_plain_arguments_and_keeps_its_place(ledger: Ledger, settings: Settings) -> None:
    deferred = deferral(sensor(timeout=1000))
    path, arguments = deferred.trigger.serialize()
    assert path == "airflow_tf.triggers.devices.DevicesTrigger"
    assert arguments["wait_seconds"] == 60
    assert settings.ledger_url not in json.dumps(arguments)
    assert waits(ledger)


def test_it_goes_on_with_the_same_result_when_devices_are_free(ledger: Ledger, held: Granted) -> None:
    task = sensor(timeout=1000)
    deferred = deferral(task)
    for member in held.members:
        ledger.release(member)
    assert resume(task, deferred.method_name, {"event": "devices seem free"})["devices"] == {
        "0": ["cpu-0"],
        "1": ["cpu-1"],
    }
    assert not waits(ledger)


@pytest.mark.usefixtures("held")
def test_the_time_is_counted_once_over_deferrals_and_the_deadline_names_the_holders(ledger: Ledger, time: Time) -> None:
    task = sensor(timeout=100)
    deferred = deferral(task)
    for _ in range(4):
        time.advance(20)
        assert waits(ledger)  # as the trigger asks
        with pytest.raises(TaskDeferred) as again:
            resume(task, deferred.method_name, {"event": "time for a look"})
    assert again.value.trigger.serialize()[1]["wait_seconds"] == pytest.approx(20, abs=1)
    time.advance(21)
    with pytest.raises(AirflowSensorTimeout, match=r"100 s.* cpu-0 held by churn / run 12 / train\[0\]"):
        resume(task, deferred.method_name, {"event": "time for a look"})
    assert not waits(ledger)


@pytest.mark.usefixtures("held")
def test_soft_fail_skips_with_the_same_words(ledger: Ledger, time: Time) -> None:
    task = sensor(timeout=10, soft_fail=True)
    deferred = deferral(task)
    time.advance(11)
    with pytest.raises(AirflowSkipException, match=r"10 s.* cpu-0 held by churn / run 12"):
        resume(task, deferred.method_name, {"event": "time for a look"})


@pytest.mark.usefixtures("held")
def test_a_deferral_that_airflow_ends_is_followed_by_a_last_look(ledger: Ledger, time: Time) -> None:
    task = sensor(timeout=10)
    deferral(task)
    time.advance(11)
    with pytest.raises(AirflowSensorTimeout, match="held by churn / run 12"):
        resume(task, *TIMED_OUT)


def test_that_last_look_may_still_succeed(ledger: Ledger, held: Granted) -> None:
    task = sensor(timeout=10)
    deferral(task)
    for member in held.members:
        ledger.release(member)
    assert resume(task, *TIMED_OUT)["devices"] == {"0": ["cpu-0"], "1": ["cpu-1"]}


@pytest.mark.usefixtures("held")
def test_a_request_that_can_never_fit_fails_at_once() -> None:
    with pytest.raises(AirflowFailException, match="wants 9 devices"):
        run(sensor(count=9))


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("is_deferrable", [True, False])
def test_a_kill_ends_the_wait_and_leaves_the_queue(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, is_deferrable: bool
) -> None:
    task = sensor()
    task.deferrable = is_deferrable
    original = module.acquire

    def killed_meanwhile(*arguments: Any) -> Any:
        answer = original(*arguments)
        assert waits(ledger)
        task.on_kill()  # as by a signal
        return answer

    monkeypatch.setattr(module, "acquire", killed_meanwhile)
    with pytest.raises(AirflowException, match="ended by a signal"):
        run(task)
    assert not waits(ledger)
    task.on_kill()  # nothing waits any more
