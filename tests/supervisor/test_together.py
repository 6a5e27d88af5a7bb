"""Gangs: replicas that are started, restarted and ended together, as scripts without TensorFlow."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_tf.core.errors import LedgerError, ViewDetachedError
from airflow_tf.core.states import CLEARED_REASON, AttemptState, ExitCause
from airflow_tf.supervisor.client import stop_replica
from airflow_tf.supervisor.results import last_step, read_verdict
from tests.supervisor.harness import Gang, Watch, is_alive, kill, wait_for, write_checkpoint

pytestmark = pytest.mark.usefixtures("no_processes_left")

TWO_WORKERS: dict[str, Any] = {"strategy": "sync", "roles": {"worker": 2}}
ASYNC: dict[str, Any] = {"strategy": "async", "roles": {"chief": 1, "worker": 1, "ps": 1}}

MEMBER = """
import json, os, signal, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
role, index = config["task"]["type"], config["task"]["index"]
me, attempt = f"{role}{index}", int(os.environ["AIRFLOW_TF_ATTEMPT"])
port = int(config["cluster"][role][index].rpartition(":")[2])
def listen():
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("0.0.0.0", port))
    server.listen()
    return server
def step(number):
    with open(os.environ["AIRFLOW_TF_METRICS_FILE"], "a") as file:
        file.write(json.dumps({"step": number}) + "\\n")
print("pid", os.getpid(), flush=True)
print("port", port, flush=True)
print("attempt", attempt, flush=True)
"""
JOINS = MEMBER + "server = listen()\n"
SLEEPS = JOINS + "time.sleep(300)\n"

THIEF = """
import socket, sys, time
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("0.0.0.0", int(sys.argv[1])))
server.listen()
print("bound", flush=True)
time.sleep(300)
"""


@pytest.fixture
def gang(make_gang: Callable[..., Gang]) -> Gang:
    return make_gang(count=2)


def start_both(gang: Gang, script: str, **fields: Any) -> tuple[Watch, Watch]:
    first = gang.start(script, replica=0, **TWO_WORKERS, **fields)
    return first, gang.start(script, replica=1, **TWO_WORKERS, **fields)


def attempts(gang: Gang) -> list[int]:
    return [record.attempts for record in gang.ledger.replicas(gang.key).values()]


def test_the_first_view_starts_all_and_a_later_one_finds_its_result(gang: Gang) -> None:
    script = JOINS + "print('config', os.environ['TF_CONFIG'], flush=True)\n"
    first = gang.start(script + "time.sleep(1)\n", **TWO_WORKERS)
    first.line("pid ")
    late = gang.start("raise SystemExit(9)", replica=1, **TWO_WORKERS)
    assert first.end().state is late.end().state is AttemptState.SUCCEEDED
    config = json.loads(first.line("config "))
    assert config["task"] == {"type": "worker", "index": 0}
    assert len(set(config["cluster"]["worker"])) == 2
    assert late.line("attempt ") == "1"
    assert attempts(gang) == [1, 1]


def test_an_inherited_cluster_never_reaches_a_replica(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["elsewhere:1"]}}')
    first = gang.start(MEMBER + "print('config', os.environ['TF_CONFIG'], flush=True)\n", **TWO_WORKERS)
    assert first.end().state is AttemptState.SUCCEEDED
    assert "elsewhere" not in first.line("config ")


def test_a_killed_worker_restarts_the_whole_gang_from_the_first_ones_checkpoint(gang: Gang) -> None:
    script = JOINS + (
        "print('resumes', os.environ.get('AIRFLOW_TF_RESUME_FROM'), flush=True)\n"
        "if attempt == 1: time.sleep(300)\n"
        "step(9)\n"
    )
    first, second = start_both(gang, script, restarts=1)
    victim = int(second.line("pid "))
    ports = {first.line("port "), second.line("port ")}
    write_checkpoint(gang.folder / "replica-0" / "generation-1" / "checkpoints" / "ck-5")
    kill(victim, signal.SIGKILL)
    assert first.end().state is second.end().state is AttemptState.SUCCEEDED
    assert attempts(gang) == [2, 2]
    lines = [line for text in second.lines for line in text.splitlines()]
    assert [line for line in lines if line.startswith("resumes ")][1].endswith(
        "replica-0/generation-1/checkpoints/ck-5"
    )
    assert {line.split()[1] for line in lines if line.startswith("port ")} - ports, "the same ports again"
    assert any("restart 1: worker 1: " in info for info in first.infos)


def test_the_budget_is_one_for_all_replicas_and_holds_over_a_new_view(gang: Gang) -> None:
    script = JOINS + (
        "while not os.path.exists(os.environ['AIRFLOW_TF_CHECKPOINT_DIR'] + '/go'): time.sleep(0.02)\n"
        "if index == attempt % 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(300)\n"
    )
    first, second = start_both(gang, script, restarts=2, tries_left=1)
    first.line("pid ")
    first.view.detached = True
    with pytest.raises(ViewDetachedError):
        first.end()
    again = gang.start(script, replica=0, try_number=2, restarts=2, **TWO_WORKERS)
    again.line("pid ")
    for number in (0, 1):
        (gang.folder / f"replica-{number}" / "generation-1" / "checkpoints" / "go").touch()
    outcomes = [again.end(), second.end()]
    assert {outcome.cause for outcome in outcomes} == {ExitCause.KILLED, ExitCause.VICTIM}
    assert attempts(gang) == [3, 3]


def test_the_first_root_cause_is_kept_and_the_others_are_its_victims(gang: Gang) -> None:
    script = JOINS + (
        "if index == 1: print('CUDA died', flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(0.5)\nraise ConnectionResetError('connection reset by peer')\n"
    )
    first, second = start_both(gang, script)
    victim, root = first.end(), second.end()
    assert (root.cause, victim.cause) == (ExitCause.KILLED, ExitCause.VICTIM)
    assert victim.message.startswith("ended because worker 1 failed: ")
    verdict = read_verdict(gang.folder)
    assert verdict is not None
    assert verdict.root.cause is ExitCause.KILLED


def test_a_worker_that_ends_early_is_no_failure(gang: Gang) -> None:
    first, second = start_both(gang, JOINS + "step(1)\nif index == 0: time.sleep(1)\n")
    assert first.end().state is second.end().state is AttemptState.SUCCEEDED
    assert attempts(gang) == [1, 1]


def test_what_waits_for_ever_is_ended_when_the_chief_is_done_and_has_succeeded(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(count=3)
    script = JOINS + (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif role != 'chief': time.sleep(300)\ntime.sleep(0.5)\n"
    )
    watches = [gang.start(script, replica=number, kill_grace_seconds=0.5, **ASYNC) for number in range(3)]
    assert {watch.end().state for watch in watches} == {AttemptState.SUCCEEDED}
    assert not any(is_alive(int(watch.line("pid "))) for watch in watches)


def test_under_the_policy_chief_a_lost_worker_fails_alone(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(count=4)
    script = JOINS + ("if me == 'worker0': os._exit(3)\nif role != 'chief': time.sleep(300)\ntime.sleep(1)\n")
    plan = {**ASYNC, "success": "chief", "roles": {"chief": 1, "worker": 2, "ps": 1}}
    watches = [gang.start(script, replica=number, kill_grace_seconds=0.5, **plan) for number in range(4)]
    chief, worker, other, ps = (watch.end() for watch in watches)
    assert chief.state is other.state is ps.state is AttemptState.SUCCEEDED
    assert (worker.state, worker.exit_code) == (AttemptState.FAILED, 3)


def test_a_worker_that_ends_before_it_joins_fails_the_gang_at_once_with_its_output(gang: Gang) -> None:
    script = MEMBER + "if index == 1: print('no such file: data.csv', flush=True); sys.exit(3)\n" + "time.sleep(300)\n"
    first, second = start_both(gang, script)
    assert "worker 1 failed" in first.end(20).message
    assert "no such file: data.csv" in second.end(20).message


@pytest.mark.parametrize("late", ["time.sleep(300)", "sys.exit(0)"])
def test_who_is_missing_at_the_start_deadline_is_named(gang: Gang, late: str) -> None:
    script = (
        MEMBER + f"if index == 1: print('importing', flush=True); {late}\n" + "server = listen()\ntime.sleep(300)\n"
    )
    first, second = start_both(gang, script, start_timeout_seconds=2.0)
    root = second.end(30)
    assert root.cause is ExitCause.RENDEZVOUS
    assert "worker 1" in root.message
    assert "there are: worker 0" in root.message
    assert "importing" in root.message
    assert "worker 1 failed: did not join its gang" in first.end().message


def test_a_thief_of_a_port_is_survived_by_a_new_attempt_on_other_ports(gang: Gang) -> None:
    """As a server of another program that binds after the choice of the port and before the replica's own server."""
    script = MEMBER + (
        "deadline = time.monotonic() + 60\n"
        "flag = os.environ['AIRFLOW_TF_CHECKPOINT_DIR'] + '/stolen'\n"
        "while attempt == 1 and index == 1 and not os.path.exists(flag) and time.monotonic() < deadline: time.sleep(0.02)\n"
        "server = listen()\nif attempt == 1: time.sleep(300)\n"
    )
    first, second = start_both(gang, script, restarts=1)
    port = int(second.line("port "))
    thief = subprocess.Popen([sys.executable, "-c", THIEF, str(port)], stdout=subprocess.PIPE)
    try:
        assert thief.stdout is not None
        assert thief.stdout.readline() == b"bound\n"
        (gang.folder / "replica-1" / "generation-1" / "checkpoints" / "stolen").touch()
        assert first.end().state is second.end().state is AttemptState.SUCCEEDED
    finally:
        thief.kill()
        thief.wait()
    assert attempts(gang) == [2, 2]
    lost = json.loads((gang.folder / "replica-1" / "generation-1" / "attempt-1" / "result.json").read_text())
    assert lost["cause"] == "rendezvous"
    assert f"its port {port} was taken by pid {thief.pid}" in lost["message"]


def test_a_program_that_starts_two_servers_is_told_that_it_holds_the_port_itself(gang: Gang) -> None:
    script = JOINS + "step(1)\ntime.sleep(2)\nif index == 1: listen()\ntime.sleep(300)\n"
    first, second = start_both(gang, script, restarts=1)
    pid = second.line("pid ")
    root = second.end()
    assert root.cause is ExitCause.USER_ERROR
    assert f"was held by pid {pid} (" in root.message
    assert "this replica itself" in root.message
    assert first.end().cause is ExitCause.VICTIM


def test_a_stop_by_the_newest_view_of_one_member_ends_the_gang(gang: Gang) -> None:
    first, second = start_both(gang, SLEEPS)
    pids = [int(watch.line("pid ")) for watch in (first, second)]
    second.view.stop("marked failed")
    assert [first.end().state, second.end().state] == [AttemptState.STOPPED] * 2
    assert not any(is_alive(pid) for pid in pids)


def test_a_late_view_of_a_failed_gang_is_told_so_and_a_new_try_starts_it_again(gang: Gang) -> None:
    script = JOINS + "if attempt == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
    assert gang.start(script, tries_left=1, **TWO_WORKERS).end().state is AttemptState.FAILED
    late = gang.start(script, replica=1, tries_left=1, **TWO_WORKERS)
    assert late.end().state is AttemptState.FAILED
    assert attempts(gang) == [1, 1]
    again = gang.start(script, try_number=2, **TWO_WORKERS)
    assert again.end().state is AttemptState.SUCCEEDED
    assert attempts(gang) == [2, 2]


def test_a_taken_reservation_ends_the_gang_at_once(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    script = JOINS + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(300)\n"
    first, second = start_both(gang, script, kill_grace_seconds=300)
    first.line("pid ")
    second.line("pid ")
    member = gang.ledger.member(gang.key, 1)
    assert member is not None
    gang.ledger.release_by_hand(member.reservation_id, "alice")
    assert second.end(20).cause is ExitCause.DEVICE_LOST
    assert first.end(20).cause is ExitCause.DEVICE_LOST


def test_a_stop_while_members_end_hurries_when_the_devices_are_lost(gang: Gang) -> None:
    script = JOINS + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(300)\n"
    first, second = start_both(gang, script, kill_grace_seconds=300)
    first.line("deaf")
    second.line("deaf")
    first.view.stop("patiently")
    member = gang.ledger.member(gang.key, 0)
    assert member is not None
    gang.ledger.release_by_hand(member.reservation_id, "alice")
    assert "patiently" in first.end(20).message


def test_orphans_of_a_gang_are_those_that_nobody_looks_at(gang: Gang) -> None:
    first, second = start_both(gang, SLEEPS, orphan_grace_seconds=1.0)
    pid = int(first.line("pid "))
    second.line("pid ")
    first.view.detached = True
    with pytest.raises(ViewDetachedError):
        first.end()
    assert is_alive(pid)
    second.view.detached = True
    with pytest.raises(ViewDetachedError):
        second.end()
    wait_for(lambda: not is_alive(pid), "the orphan's end")


def test_a_cleared_member_restarts_the_gang_and_the_views_of_its_siblings_go_on_with_it(gang: Gang) -> None:
    generations = JOINS + "if 'generation-1' in os.environ['AIRFLOW_TF_RUN_FOLDER']: time.sleep(300)\nstep(3)\n"
    first, second = start_both(gang, generations)
    pids = [int(watch.line("pid ")) for watch in (first, second)]
    with pytest.raises(LedgerError, match="released"):  # its members went with the old generation
        gang.start(generations, replica=1, try_number=2, first_try=2, **TWO_WORKERS).end()
    assert not any(is_alive(pid) for pid in pids)
    with pytest.raises(ViewDetachedError):  # the view of the try that was cleared
        second.end()
    with pytest.raises(LedgerError, match="released"):  # its operator reserves anew and attaches again
        first.end()
    cleared = gang.start(generations, replica=1, try_number=2, first_try=2, **TWO_WORKERS)
    sibling = gang.start(generations, replica=0, **TWO_WORKERS)
    assert cleared.end().state is sibling.end().state is AttemptState.SUCCEEDED
    assert {record.generation for record in gang.ledger.replicas(gang.key).values()} == {2}
    assert attempts(gang) == [1, 1]


def test_views_wait_for_the_new_generation_when_a_siblings_task_is_cleared(gang: Gang) -> None:
    script = JOINS + "if 'generation-1' in os.environ['AIRFLOW_TF_RUN_FOLDER']: time.sleep(300)\nstep(3)\n"
    first, second = start_both(gang, script)
    pid = int(first.line("pid "))
    second.line("pid ")
    stop_replica(gang.folder, 1, second.view.attach.view, CLEARED_REASON, ExitCause.MARKED)  # as its old try does
    wait_for(lambda: not is_alive(pid) and gang.ledger.member(gang.key, 1) is None, "the end of the old generation")
    cleared = gang.start(script, replica=1, try_number=2, first_try=2, **TWO_WORKERS)
    assert cleared.end().state is AttemptState.SUCCEEDED
    assert first.end().state is AttemptState.SUCCEEDED
    assert {record.generation for record in gang.ledger.replicas(gang.key).values()} == {2}


def test_a_stop_asked_in_the_ledger_ends_the_gang(gang: Gang) -> None:
    first, second = start_both(gang, SLEEPS)
    first.line("pid ")
    gang.ledger.ask_stop(gang.key, 1, second.view.attach.view, "its trigger was cancelled")
    assert "its trigger was cancelled" in first.end(20).message
    assert second.end(20).state is AttemptState.STOPPED


def test_a_view_that_gives_signs_in_the_ledger_keeps_its_gang_alive(gang: Gang) -> None:
    first = gang.start(SLEEPS, orphan_grace_seconds=4.0, **TWO_WORKERS)
    pid, begun = int(first.line("pid ")), time.monotonic()
    first.view.detached = True
    with pytest.raises(ViewDetachedError):
        first.end()

    def sign() -> bool:
        assert is_alive(pid)
        gang.ledger.renew_view(gang.key, 0, first.view.attach.view)
        return time.monotonic() > begun + 6

    wait_for(sign, "more than the grace")
    wait_for(lambda: not is_alive(pid), "the orphan's end", 30)


def test_ports_are_outside_the_range_of_clients(gang: Gang) -> None:
    first, _ = start_both(gang, JOINS)
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not low <= int(first.line("port ")) <= high
    assert first.end().state is AttemptState.SUCCEEDED


TRAINS = """
import json, os, time
print("pid", os.getpid(), flush=True)
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("in sync", strategy.num_replicas_in_sync, flush=True)
with strategy.scope():
    weight = tf.Variable(tf.zeros((4, 1)))
    step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
checkpoint = tf.train.Checkpoint(weight=weight, step=step)
resume = os.environ.get("AIRFLOW_TF_RESUME_FROM")
if resume:
    checkpoint.restore(resume).assert_existing_objects_matched()
print("begins at", int(step.numpy()), flush=True)
manager = tf.train.CheckpointManager(checkpoint, os.environ["AIRFLOW_TF_CHECKPOINT_DIR"], max_to_keep=3)

@tf.function
def train():
    def one():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((tf.ones((8, 4)) @ weight - 1.0) ** 2)
        gradient = tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, weight))
        weight.assign_sub(0.001 * gradient)
        step.assign_add(1)
    strategy.run(one)

while int(step.numpy()) < 40:
    train()
    number = int(step.numpy())
    if number % 5 == 0:
        manager.save(checkpoint_number=number)
    with open(os.environ["AIRFLOW_TF_METRICS_FILE"], "a") as file:
        file.write(json.dumps({"step": number}) + "\\n")
    time.sleep(0.1)
"""


@pytest.mark.tensorflow
def test_workers_of_tensorflow_train_together_and_go_on_after_one_was_killed(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(count=2, start_method="zygote")
    first, second = start_both(gang, TRAINS, restarts=1, kill_grace_seconds=30)
    attempt = gang.folder / "replica-0" / "generation-1" / "attempt-1"
    wait_for(lambda: (last_step(attempt) or 0) >= 12, "twelve steps", 120)
    kill(int(second.line("pid ")), signal.SIGKILL)
    outcomes = [first.end(120), second.end(120)]
    assert {outcome.state for outcome in outcomes} == {AttemptState.SUCCEEDED}
    assert {outcome.metrics["step"] for outcome in outcomes} == {40}
    assert attempts(gang) == [2, 2]
    for watch in (first, second):
        lines = [line for text in watch.lines for line in text.splitlines()]
        assert [line for line in lines if line.startswith("in sync")] == ["in sync 2"] * 2
        assert int([line for line in lines if line.startswith("begins at ")][1].split()[-1]) >= 10
