"""The trigger of a waiting sensor: keeps the place in the queue, asks only the ledger, and leaves for a user."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tf.core.errors import LedgerUnavailableError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Waiting
from airflow_tf.triggers import shared
from airflow_tf.triggers.devices import DevicesTrigger

KEY = GangKey("installation", "dag", "run", "train")
BUSY, FREE = Waiting(1.0, is_promising=False), Waiting(2.0, is_promising=True)


class FakeLedger:
    """Answers one look after another, the last one for ever."""

    def __init__(self, *answers: Waiting | Exception | None) -> None:
        self.answers = list(answers)
        self.looks = 0
        self.withdrawn: list[GangKey] = []

    def look(self, _key: GangKey) -> Waiting | None:
        self.looks += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def withdraw(self, key: GangKey) -> None:
        self.withdrawn.append(key)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeLedger]:
    def make(*answers: Waiting | Exception | None) -> FakeLedger:
        fake = FakeLedger(*answers)
        monkeypatch.setattr(shared, "shared_ledger", lambda: fake)
        return fake

    return make


def fire(wait_seconds: float = 20.0) -> str:
    trigger = DevicesTrigger(KEY.to_json(), wait_seconds)

    async def first() -> Any:
        return await anext(trigger.run())

    return str(asyncio.run(first()).payload)


def test_it_fires_when_devices_seem_free(use: Callable[..., FakeLedger]) -> None:
    ledger = use(BUSY, BUSY, FREE)
    assert fire() == "devices seem free"
    assert ledger.looks == 3


def test_it_never_fires_before_the_scheduler_has_surely_read_that_its_task_deferred(
    use: Callable[..., FakeLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(FREE)
    monkeypatch.setattr(shared, "AWAY_SECONDS", 0.4)
    began = time.monotonic()
    assert fire() == "devices seem free"
    assert time.monotonic() >= began + 0.4


def test_a_gang_that_waits_no_more_is_looked_at(use: Callable[..., FakeLedger]) -> None:
    use(BUSY, None)
    assert fire() == "devices seem free"


def test_it_fires_at_the_latest_when_its_time_is_over(use: Callable[..., FakeLedger]) -> None:
    ledger = use(BUSY)
    assert fire(wait_seconds=0.3) == "time for a look"
    assert ledger.looks > 1


def test_a_ledger_that_is_away_does_not_end_the_wait(use: Callable[..., FakeLedger]) -> None:
    use(BUSY, LedgerUnavailableError("away"), LedgerUnavailableError("away"), FREE)
    assert fire() == "devices seem free"


def test_its_arguments_are_plain_json() -> None:
    path, arguments = DevicesTrigger(KEY.to_json(), 7.0).serialize()
    assert path == "airflow_tf.triggers.devices.DevicesTrigger"
    assert json.loads(json.dumps(arguments)) == {"gang": KEY.to_json(), "wait_seconds": 7.0}


@pytest.mark.parametrize(("state", "withdrawn"), [("failed", [KEY]), (None, [KEY]), ("deferred", [])])
def test_it_leaves_the_queue_for_a_user_and_not_for_another_triggerer(
    use: Callable[..., FakeLedger], monkeypatch: pytest.MonkeyPatch, state: str | None, withdrawn: list[GangKey]
) -> None:
    ledger = use(BUSY)
    monkeypatch.setattr(shared, "task_states", lambda *_: {"reserve": state})
    trigger = DevicesTrigger(KEY.to_json())
    trigger._task_instance = SimpleNamespace(dag_id="dag", run_id="run", task_id="reserve", map_index=-1)
    asyncio.run(trigger.on_kill())
    assert ledger.withdrawn == withdrawn
