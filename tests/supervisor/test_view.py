"""A view beside its replica: how far it has shown the output, when its time is over, how it leaves, whom it obeys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_tf.core.errors import ReplicaTimeoutError, ViewDetachedError
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.supervisor import view as module
from tests.supervisor.harness import Gang, is_alive, wait_for

FOR_EVER = """\
import os, time
print("pid", os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def gang(make_gang: Callable[..., Gang]) -> Gang:
    return make_gang()


def test_a_replica_whose_time_is_over_is_stopped(gang: Gang) -> None:
    watch = gang.start(FOR_EVER, timeout_seconds=2.0)
    pid = int(watch.line("pid "))
    with pytest.raises(ReplicaTimeoutError, match="replica 0 was stopped"):
        watch.end()
    assert not is_alive(pid)
    outcome = gang.ledger.replicas(gang.key)[0].outcome
    assert outcome is not None
    assert (outcome.state, outcome.cause) == (AttemptState.STOPPED, ExitCause.STOPPED)
    assert outcome.message == "its task's execution_timeout is over"


def test_a_view_that_leaves_lets_the_replica_go_on(gang: Gang, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.05)\nprint('done')"
    first = gang.start(script, leaves=True)
    assert first.thread is not None
    first.thread.join(30)
    assert (first.outcome, first.error) == (None, None)
    gate.touch()
    second = gang.start(script)
    assert second.end().state is AttemptState.SUCCEEDED
    assert second.lines == ["done"]


def test_the_position_of_the_output_is_told_and_the_next_view_goes_on_there(gang: Gang, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f"""\
import pathlib, time
print("one", flush=True)
while not pathlib.Path({str(gate)!r}).exists():
    time.sleep(0.05)
print("two", flush=True)
"""
    first = gang.start(script, tries_left=1)
    first.line("one")
    first.view.detached = True
    with pytest.raises(ViewDetachedError):
        first.end()
    assert first.shown[-1] == (1, 4)
    second = gang.start(script, try_number=2, position=first.shown[-1])
    gate.touch()
    assert second.end().state is AttemptState.SUCCEEDED
    assert second.lines == ["two"]
    assert second.shown[-1] == (1, 8)


def test_a_killed_task_lets_go_of_its_replica_unless_a_user_ended_it(gang: Gang) -> None:
    first = gang.start(FOR_EVER, tries_left=1)
    pid = int(first.line("pid "))
    first.view.observer.mark = lambda: ""
    first.view.killed = True
    with pytest.raises(ViewDetachedError, match="no user"):
        first.end()
    second = gang.start(FOR_EVER, try_number=2)
    assert int(second.line("pid ")) == pid
    second.view.killed = True
    assert second.end().cause is ExitCause.MARKED
    wait_for(lambda: not is_alive(pid), "the replica's end")


def test_that_a_user_marked_the_task_is_recorded_although_it_is_found_out_after_the_stop(gang: Gang) -> None:
    ignoring = FOR_EVER.replace("time.sleep(600)", "import signal; signal.signal(15, lambda *_: None); time.sleep(600)")
    watch = gang.start(ignoring + "time.sleep(600)\n")
    pid = int(watch.line("pid "))
    watch.view.stop("its task was killed")
    watch.view.killed = True
    outcome = watch.end()
    assert (outcome.cause, outcome.message) == (ExitCause.MARKED, "its task was marked failed")
    wait_for(lambda: not is_alive(pid), "the replica's end")


def test_nobody_waits_for_siblings_in_a_slot(
    make_gang: Callable[..., Gang], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SIBLINGS_SECONDS", 0.2)
    gate = tmp_path / "gate"
    script = f"""\
import json, os, pathlib, socket, time
config = json.loads(os.environ["TF_CONFIG"])
index = config["task"]["index"]
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("0.0.0.0", int(config["cluster"]["worker"][index].rpartition(":")[2])))
server.listen()
time.sleep(1)
while index == 1 and not pathlib.Path({str(gate)!r}).exists():
    time.sleep(0.05)
print("worker", index, "has ended")
"""
    gang = make_gang(count=2)
    plan = {"strategy": "sync", "roles": {"worker": 2}}
    first = gang.start(script, replica=0, holds_slot=True, **plan)
    second = gang.start(script, replica=1, holds_slot=True, **plan)
    assert first.thread is not None
    first.thread.join(30)
    assert (first.outcome, first.error) == (None, None)
    assert first.lines == ["worker 0 has ended"]
    assert first.infos[-1] == "the replica has ended; its gang goes on"
    again = gang.start(script, replica=0, position=first.shown[-1], **plan)
    wait_for(lambda: "the replica has ended; its gang goes on" in again.infos, "to be told so again")
    gate.touch()
    assert again.end().state is second.end().state is AttemptState.SUCCEEDED
    assert again.lines == []
