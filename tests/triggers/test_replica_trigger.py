"""The trigger of a deferred view: shows the output once, fires when its task is needed, and stops only for a user."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tf.core.errors import LedgerUnavailableError
from airflow_tf.core.identity import View
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import AttemptState
from airflow_tf.ledger import Ledger
from airflow_tf.supervisor.acquire import this_host
from airflow_tf.supervisor.tail import OutputTail
from airflow_tf.triggers import shared
from airflow_tf.triggers.replica import ENDED, LOST, SUPERSEDED, TIMED_OUT, ReplicaTrigger, Watched
from tests.triggers.running import VIEW, Running

DEADLINE_SECONDS = 20.0


@pytest.fixture
def running(settings: Settings, ledger: Ledger) -> Iterator[Running]:
    made = Running(settings, ledger)
    yield made
    if made.lock >= 0:
        os.close(made.lock)


def watch(trigger: ReplicaTrigger, on_line: Callable[[str], None] = lambda _: None) -> tuple[str, list[str]]:
    """Run a trigger to its event; return that and what it said."""
    lines: list[str] = []

    def say(text: str, *args: object) -> None:
        lines.append(text % args)
        on_line(lines[-1])

    trigger._log = SimpleNamespace(info=say, warning=say)

    async def first() -> Any:
        return await anext(trigger.run())

    async def within_deadline() -> Any:
        return await asyncio.wait_for(first(), DEADLINE_SECONDS)

    return asyncio.run(within_deadline()).payload, lines


def test_its_arguments_are_plain_json_without_secrets(running: Running, settings: Settings) -> None:
    path, arguments = running.trigger(60.0).serialize()
    assert path == "airflow_tf.triggers.replica.ReplicaTrigger"
    assert settings.ledger_url not in json.dumps(arguments)
    again = ReplicaTrigger(**json.loads(json.dumps(arguments)))
    assert again.watched == running.trigger(60.0).watched


def test_it_never_fires_before_the_scheduler_has_surely_read_that_its_task_deferred(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "AWAY_SECONDS", 0.4)
    running.end()
    began = time.monotonic()
    assert watch(running.trigger())[0] == ENDED
    assert time.monotonic() >= began + 0.4


def test_the_output_is_shown_live_over_attempts_and_its_position_is_handed_on(running: Running) -> None:
    running.write("one\n")

    def go_on(line: str) -> None:
        if line.endswith("one"):
            running.write("open end")
            running.end(Outcome(AttemptState.FAILED))
            running.begin(2)
            running.write("two\n", attempt=2)
        elif line.endswith("two"):
            running.write("three\nfou", attempt=2)
            running.end(attempt=2)

    event, lines = watch(running.trigger(), go_on)
    assert event == ENDED
    assert lines[:3] == ["[train 0] one", "[train 0] open end", "[train 0] two"]
    record = running.ledger.replicas(running.key)[0]
    rest: list[str] = []
    OutputTail(running.generation, rest.append, record.log_position).forward(record.attempts, final=True)
    assert [line.removeprefix("[train 0] ") for line in lines[3:]] + rest == ["three", "fou"]


def test_a_restarted_triggerer_goes_on_where_the_last_one_has_ended(running: Running) -> None:
    running.write("one\ntwo\n")
    running.ledger.renew_view(running.key, 0, VIEW, (1, 4))
    running.end()
    assert watch(running.trigger()) == (ENDED, ["[train 0] two"])


def test_output_on_another_host_is_left_to_the_task(running: Running) -> None:
    running.write("one\n")
    running.end()
    assert watch(running.trigger(host_id="other")) == (ENDED, [])
    assert running.ledger.replicas(running.key)[0].log_position == (0, 0)


def test_a_newer_try_takes_over(running: Running) -> None:
    running.ledger.enter(running.key, 0, View("ti-2", 2, 1))
    assert watch(running.trigger())[0] == SUPERSEDED


def test_a_cleared_task_takes_over(running: Running) -> None:
    running.ledger.enter(running.key, 0, View("ti-2", 2, 2))
    assert watch(running.trigger())[0] == SUPERSEDED


def test_a_supervisor_that_dies_is_noticed(running: Running) -> None:
    running.kill_supervisor()
    assert watch(running.trigger())[0] == LOST


def test_a_supervisor_that_ended_after_its_replica_is_no_loss(running: Running) -> None:
    running.end()
    running.kill_supervisor()
    assert watch(running.trigger())[0] == ENDED


def test_the_execution_timeout_stops_the_replica_and_the_task_learns_why(running: Running) -> None:
    def end(line: str) -> None:
        if "being stopped" in line:
            assert running.stops() == {0: "its task's execution_timeout of 0 s is over"}
            running.end(Outcome(AttemptState.STOPPED))

    assert watch(running.trigger(timeout_seconds=0.0), end)[0] == TIMED_OUT


def test_a_ledger_that_does_not_answer_is_asked_again(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter(range(3))
    original = Ledger.renew_view

    def renew(*args: Any) -> bool:
        if next(failures, None) is not None:
            raise LedgerUnavailableError("the ledger does not answer")
        return original(*args)

    monkeypatch.setattr(Ledger, "renew_view", renew)
    running.end()
    event, lines = watch(running.trigger())
    assert event == ENDED
    assert lines == ["the ledger does not answer"]


def test_the_event_loop_goes_on_while_the_ledger_hangs(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: Any) -> bool:
        time.sleep(0.5)
        running.end()
        return True

    monkeypatch.setattr(Ledger, "renew_view", hang)

    async def longest_pause() -> float:
        trigger = running.trigger()
        firing = asyncio.ensure_future(anext(trigger.run()))
        longest, last = 0.0, time.monotonic()
        while not firing.done():
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        return longest

    assert asyncio.run(longest_pause()) < 0.4


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("failed", "its task was marked failed"),
        ("success", "its task was marked success"),
        (None, "its task was cleared"),
        ("queued", "its task was cleared"),
        ("deferred", None),
    ],
)
def test_a_user_s_mark_stops_the_replica_and_another_triggerer_does_not(
    running: Running, monkeypatch: pytest.MonkeyPatch, state: str | None, reason: str | None
) -> None:
    asked = []

    def states(*where: str) -> dict[str, str | None]:
        asked.append(where)
        return {"train_3": state, "train_4": "running"}

    monkeypatch.setattr(shared, "task_states", states)
    trigger = running.trigger()
    trigger._task_instance = SimpleNamespace(dag_id="dag", run_id="run", task_id="train", map_index=3)
    asyncio.run(trigger.on_kill())
    assert asked == [("dag", "run", "train")]
    assert running.stops() == ({} if reason is None else {0: reason})


def test_a_triggerer_that_ends_stops_nothing(running: Running) -> None:
    async def cancelled() -> None:
        trigger = running.trigger()
        firing = asyncio.ensure_future(anext(trigger.run()))
        await asyncio.sleep(0.1)
        firing.cancel()
        await asyncio.wait({firing})
        await trigger.cleanup()

    asyncio.run(cancelled())
    assert running.stops() == {}


def test_files_of_the_gang_need_not_exist(running: Running, tmp_path: Path) -> None:
    watched = Watched(running.key, 0, VIEW, 1, str(tmp_path / "none"), this_host().host_id, "train 0")
    assert watch(ReplicaTrigger(watched.to_json()))[0] == LOST
