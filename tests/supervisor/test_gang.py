"""Supervisor, zygote and replicas with real processes; each test leaves none behind."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.errors import LedgerError, SupervisorLostError, ViewDetachedError
from airflow_tf.core.ledger import Granted
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.devices.locks import DeviceLock
from airflow_tf.supervisor.acquire import acquire
from tests.supervisor.harness import Gang, is_alive, kill, wait_for, write_checkpoint

pytestmark = pytest.mark.usefixtures("no_processes_left")

PRINT_PID = "import os, time\nprint('pid', os.getpid(), flush=True)\n"
SLEEP = PRINT_PID + "time.sleep(300)\n"
IGNORES_TERM = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP


@pytest.fixture
def gang(make_gang: Callable[..., Gang]) -> Gang:
    return make_gang()


def test_a_program_that_ends_well_succeeds_and_gives_its_device_back(gang: Gang, settings: Settings) -> None:
    watch = gang.start(
        "import os\nprint('replica', os.environ['AIRFLOW_TF_REPLICA'], 'of', os.environ['AIRFLOW_TF_REPLICAS'])"
    )
    outcome = watch.end()
    assert outcome.state is AttemptState.SUCCEEDED
    assert watch.line("replica ") == "0 of 1"
    assert gang.ledger.member(gang.key, 0) is None
    assert gang.ledger.replicas(gang.key)[0].outcome == outcome
    lock = DeviceLock(settings.lock_dir, "cpu-0")
    assert lock.try_acquire()
    lock.release()


def test_an_exit_code_of_zero_without_a_checkpoint_fails(gang: Gang) -> None:
    outcome = gang.start("print('done')", require_checkpoint=True).end()
    assert (outcome.state, outcome.cause) == (AttemptState.FAILED, ExitCause.NO_CHECKPOINT)
    assert "AIRFLOW_TF_CHECKPOINT_DIR" in outcome.message


@pytest.mark.parametrize(
    ("script", "cause", "text"),
    [
        ("raise ValueError('no such column: dep_delay')", ExitCause.USER_ERROR, "no such column: dep_delay"),
        ("import os; os._exit(3)", ExitCause.USER_ERROR, "exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", ExitCause.KILLED, "SIGKILL"),
        ("raise SystemExit(1)", ExitCause.USER_ERROR, "exit code 1"),
    ],
)
def test_any_other_end_is_red_with_its_cause(gang: Gang, script: str, cause: ExitCause, text: str) -> None:
    outcome = gang.start(script).end()
    assert (outcome.state, outcome.cause) == (AttemptState.FAILED, cause)
    assert text in outcome.message


def test_a_killed_replica_is_restarted_within_its_budget(gang: Gang) -> None:
    script = (
        "import os, signal\n"
        "print('attempt', os.environ['AIRFLOW_TF_ATTEMPT'], flush=True)\n"
        "if os.environ['AIRFLOW_TF_ATTEMPT'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    watch = gang.start(script, restarts=1)
    assert watch.end().state is AttemptState.SUCCEEDED
    assert watch.line("attempt 2") == ""
    assert gang.ledger.replicas(gang.key)[0].attempts == 2


@pytest.mark.parametrize(("fresh", "metrics"), [(False, {"step": 9, "loss": 0.01}), (True, {})])
def test_a_success_that_had_nothing_left_to_do_has_the_metrics_of_the_attempts_that_it_went_on_from(
    gang: Gang, fresh: bool, metrics: dict[str, float]
) -> None:
    script = (
        "import os, signal\n"
        "if os.environ['AIRFLOW_TF_ATTEMPT'] == '1':\n"
        "    with open(os.environ['AIRFLOW_TF_METRICS_FILE'], 'w') as file: file.write('{\"step\": 9, \"loss\": 0.01}\\n')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    outcome = gang.start(script, restarts=1, fresh=fresh).end()
    assert (outcome.state, outcome.metrics) == (AttemptState.SUCCEEDED, metrics)


def test_the_environment_is_built_anew(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {}}')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("AIRFLOW_CONN_SECRET", "hidden")
    script = "import os\nprint('found', [os.environ.get(n) for n in ('TF_CONFIG', 'CUDA_VISIBLE_DEVICES', 'AIRFLOW_CONN_SECRET', 'MINE')])"
    watch = gang.start(script, environment={"MINE": "yes"})
    watch.end()
    assert watch.line("found ") == "[None, '-1', None, 'yes']"


def test_a_stop_ends_the_whole_tree_even_if_it_ignores_sigterm(gang: Gang) -> None:
    script = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import os, signal, time\\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\nos.setsid()\\ntime.sleep(300)'])\n"
        "print('child', child.pid, flush=True)\n" + SLEEP
    )
    watch = gang.start(script, kill_grace_seconds=0.5)
    child, pid = int(watch.line("child ")), int(watch.line("pid "))
    watch.view.stop("the test wants it")
    outcome = watch.end()
    assert (outcome.state, outcome.cause) == (AttemptState.STOPPED, ExitCause.STOPPED)
    assert "the test wants it" in outcome.message
    assert not is_alive(pid)
    assert not is_alive(child)


def test_sigterm_leaves_time_for_a_last_checkpoint(gang: Gang) -> None:
    script = (
        "import signal, sys, time\n"
        "def save(*_):\n    time.sleep(0.5)\n    print('saved', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n" + SLEEP
    )
    watch = gang.start(script, kill_grace_seconds=10)
    watch.line("pid ")
    watch.view.stop("enough")
    watch.end()
    assert watch.line("saved") == ""


def test_a_new_view_attaches_to_the_running_process(gang: Gang) -> None:
    first = gang.start(SLEEP, tries_left=1)
    pid = first.line("pid ")
    first.view.detached = True
    with pytest.raises(ViewDetachedError):
        first.end()
    second = gang.start(SLEEP, try_number=2)
    assert second.line("pid ") == pid
    first.view.stop("an old try dies late")
    second.view.stop("the newest may")
    outcome = second.end()
    assert "the newest may" in outcome.message


def test_an_orphan_is_stopped_when_its_grace_is_over(gang: Gang) -> None:
    watch = gang.start(SLEEP, orphan_grace_seconds=0.5)
    pid = int(watch.line("pid "))
    watch.view.detached = True
    with pytest.raises(ViewDetachedError):
        watch.end()
    wait_for(lambda: not is_alive(pid), "the orphan's end")
    wait_for(lambda: gang.ledger.replicas(gang.key)[0].outcome, "its outcome")
    assert gang.ledger.replicas(gang.key)[0].outcome.cause is ExitCause.STOPPED


def test_a_program_that_exits_with_0_on_sigterm_was_stopped_and_is_started_again(gang: Gang) -> None:
    saves = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + SLEEP
    watch = gang.start(saves, tries_left=1)
    watch.line("pid ")
    watch.view.stop("its task was killed")
    assert watch.end().state is AttemptState.STOPPED
    assert gang.start(PRINT_PID, try_number=2, tries_left=0).end().state is AttemptState.SUCCEEDED


def test_a_cleared_task_gets_a_new_generation_and_the_old_process_ends(gang: Gang) -> None:
    first = gang.start(SLEEP, tries_left=1)
    pid = int(first.line("pid "))
    with pytest.raises(LedgerError, match="released"):  # the reservation went with the old process
        gang.start(PRINT_PID, try_number=2, first_try=2).end()
    second = gang.start(PRINT_PID, try_number=2, first_try=2)
    assert second.end().state is AttemptState.SUCCEEDED
    assert int(second.line("pid ")) != pid
    assert not is_alive(pid)
    assert gang.ledger.replicas(gang.key)[0].generation == 2


def test_a_cancel_by_ledger_stops_the_replica(gang: Gang) -> None:
    watch = gang.start(SLEEP)
    watch.line("pid ")
    gang.ledger.cancel(gang.key.key, "alice")
    assert watch.end().cause is ExitCause.CANCELLED


def test_sigkill_of_the_supervisor_leaves_no_replica_and_the_next_try_trains(gang: Gang) -> None:
    script = IGNORES_TERM.replace(
        "print('pid'",
        "import subprocess; c = subprocess.Popen(['sleep', '300']); print('child', c.pid, flush=True)\nprint('pid'",
    )
    watch = gang.start(script, tries_left=1)
    pid, child = int(watch.line("pid ")), int(watch.line("child "))
    kill(gang.supervisor_pid(), signal.SIGKILL)
    with pytest.raises(SupervisorLostError):
        watch.end()
    wait_for(lambda: not is_alive(pid) and not is_alive(child), "the replica's end", deadline_seconds=10)
    again = gang.start(PRINT_PID, try_number=2)
    assert again.end().state is AttemptState.SUCCEEDED


def test_a_supervisor_asked_to_end_stops_its_replicas_with_grace(gang: Gang) -> None:
    watch = gang.start(SLEEP)
    watch.line("pid ")
    kill(gang.supervisor_pid(), signal.SIGTERM)
    assert watch.end().cause is ExitCause.PREEMPTED


def test_the_supervisor_ends_at_once_when_every_replica_is_final(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(count=2)
    assert gang.start("print(0)", replica=0).end().state is AttemptState.SUCCEEDED
    assert gang.supervisor_pid() is not None
    assert gang.start("print(1)", replica=1).end().state is AttemptState.SUCCEEDED
    assert gang.client.wait_gone(10)


def test_an_interpreter_without_tensorflow_is_said(make_gang: Callable[..., Gang], tmp_path: Path) -> None:
    (tmp_path / "python").write_text(f"#!/bin/sh\nexec {os.path.realpath('/bin/false')}\n")
    (tmp_path / "python").chmod(0o755)
    gang = make_gang(start_method="zygote", python=str(tmp_path / "python"))
    outcome = gang.start("print(1)").end()
    assert outcome.state is AttemptState.FAILED
    assert "cannot import TensorFlow" in outcome.message


@pytest.mark.tensorflow
def test_a_zygote_forks_replicas_that_carry_their_own_token(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(count=2, start_method="zygote")
    script = (
        "import os, sys, time\nassert 'tensorflow' in sys.modules\n"
        "print('environ', open('/proc/self/environ').read().split('AIRFLOW_TF_FENCE=')[1].split(chr(0))[0], flush=True)\n"
        + PRINT_PID
        + "print('parent', os.getppid(), flush=True)\n"
    )
    first, second = gang.start(script, replica=0), gang.start(script, replica=1)
    assert first.end().state is second.end().state is AttemptState.SUCCEEDED
    assert first.line("parent ") == second.line("parent ")
    assert first.line("environ ") != second.line("environ ")
    assert first.view._token == first.line("environ ")


@pytest.mark.tensorflow
def test_sigkill_of_the_zygote_kills_its_replicas_and_the_next_try_trains(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(start_method="zygote")
    watch = gang.start(SLEEP, tries_left=1)
    pid = int(watch.line("pid "))
    kill(gang.zygote_pid(), signal.SIGKILL)
    outcome = watch.end()
    assert (outcome.state, outcome.cause) == (AttemptState.LOST, ExitCause.INFRASTRUCTURE)
    wait_for(lambda: not is_alive(pid), "the replica's end", deadline_seconds=10)
    assert gang.start(PRINT_PID, try_number=2).end().state is AttemptState.SUCCEEDED


def test_the_end_of_one_replica_keeps_its_siblings_device_locked(
    make_gang: Callable[..., Gang], settings: Settings
) -> None:
    gang = make_gang(count=2)
    granted = acquire(gang.ledger, settings, gang.key, DeviceRequest("cpu"), [0, 1])  # one reservation for both
    assert isinstance(granted, Granted)
    devices = {member.replica: member.devices[0].uuid for member in granted.members}
    first, second = gang.start(SLEEP, replica=0), gang.start(SLEEP, replica=1)
    first.line("pid ")
    second.line("pid ")
    holders = {number: DeviceLock(settings.lock_dir, uuid).holders() for number, uuid in devices.items()}
    tokens = {number: [holder.token for holder in found] for number, found in holders.items()}
    assert tokens == {0: [first.view._token], 1: [second.view._token]}
    first.view.stop("only this one")
    first.end()
    locks = {number: DeviceLock(settings.lock_dir, uuid).is_held() for number, uuid in devices.items()}
    assert locks == {0: False, 1: True}
    second.view.stop("now this one")
    second.end()


def test_a_try_resumes_from_the_last_checkpoint_and_never_silently_from_scratch(gang: Gang) -> None:
    first = gang.start("import os, signal\n" + PRINT_PID + "os.kill(os.getpid(), signal.SIGKILL)", tries_left=2)
    assert first.end().cause is ExitCause.KILLED
    checkpoints = gang.folder / "replica-0" / "generation-1" / "checkpoints"
    write_checkpoint(checkpoints / "ck-7")
    script = "import os\nprint('resumes', os.environ.get('AIRFLOW_TF_RESUME_FROM'))\nraise SystemExit(3)"
    second = gang.start(script, try_number=2, tries_left=1)
    second.end()
    assert second.line("resumes ") == str(checkpoints / "ck-7")
    (checkpoints / "ck-7.index").write_bytes(b"garbage")
    third = gang.start(script, try_number=3).end()
    assert (third.state, third.cause) == (AttemptState.FAILED, ExitCause.CONFIG_REFUSED)
    assert "does not start from scratch silently" in third.message


def test_a_replica_whose_folder_cannot_be_made_is_refused_not_awaited(gang: Gang) -> None:
    gang.folder.mkdir(parents=True)
    (gang.folder / "replica-0").write_text("a file where a folder must be")
    with pytest.raises(SupervisorLostError, match="could not be run"):
        gang.start(PRINT_PID).end()
    wait_for(lambda: gang.ledger.member(gang.key, 0) is None, "the device's release")


@pytest.mark.tensorflow
def test_an_environment_read_at_import_time_is_given_by_spawning(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(count=2, start_method="zygote")
    script = "import os\nprint('found', os.environ.get('TF_ENABLE_ONEDNN_OPTS'), os.getppid(), flush=True)\nimport time; time.sleep(3)\nraise SystemExit(int(os.environ['AIRFLOW_TF_REPLICA']) * 3)"
    first = gang.start(script, replica=0)
    second = gang.start(script, replica=1, environment={"TF_ENABLE_ONEDNN_OPTS": "0"})
    assert first.line("found ").split()[0] == "None"
    assert second.line("found ").split()[0] == "0"
    assert first.end().exit_code == 0
    assert second.end().exit_code == 3  # nobody else reaped it


def test_a_failure_of_our_own_is_told_while_the_ledger_is_away(gang: Gang, settings: Settings) -> None:
    """As on a full disk, which takes the run folder and the ledger at once."""
    watch = gang.start("import os, time\n" + PRINT_PID + "time.sleep(1)")
    watch.line("pid ")
    attempt = gang.folder / "replica-0" / "generation-1" / "attempt-1"
    (attempt / "result.json.tmp").mkdir()
    blocker = sqlite3.connect(settings.ledger_url.removeprefix("sqlite:///"), isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(SupervisorLostError, match="Is a directory"):
            watch.end(30)
    finally:
        blocker.close()
    wait_for(lambda: gang.ledger.member(gang.key, 0) is None, "the device's release")
