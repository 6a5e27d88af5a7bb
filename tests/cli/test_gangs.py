from __future__ import annotations

import os
import signal

import pytest

from airflow_tf.cli.gangs import Canceller, find_gangs
from airflow_tf.core.errors import LedgerError
from airflow_tf.core.states import AttemptState
from airflow_tf.devices.locks import DeviceLock
from airflow_tf.ledger.read import LedgerReader
from tests.supervisor.harness import Gang, is_alive, kill, wait_for

SLEEP = "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(300)\n"

pytestmark = pytest.mark.usefixtures("no_processes_left")


@pytest.fixture
def gang(installation, tmp_path):
    return Gang(installation, tmp_path)


def wait_until_running(gang):
    """Wait for the supervisor's heartbeat, which records that the attempt runs."""
    wait_for(lambda: LedgerReader(gang.ledger).runs()[0].replicas[0].state == "running", "the attempt is recorded")


def test_devices_are_listed_before_anything_ran(airflow_tf):
    code, rows = airflow_tf("devices", "--output", "json")
    assert code == 0
    assert [(row["device"], row["state"], row["held_by"]) for row in rows] == [
        ("cpu-0", "free", ""),
        ("cpu-1", "free", ""),
    ]


def test_no_runs_yet(airflow_tf):
    assert airflow_tf("runs") == (0, "No data found\n")


def test_a_running_gang_is_shown_and_cancelled(airflow_tf, gang):
    watch = gang.start(SLEEP)
    pid = int(watch.line("pid "))
    _, devices = airflow_tf("devices", "--output", "json")
    assert [(row["device"], row["state"], row["held_by"]) for row in devices] == [
        ("cpu-0", "busy", "dag / run / train[0]"),
        ("cpu-1", "free", ""),
    ]
    wait_until_running(gang)
    _, [run] = airflow_tf("runs", "--dag", "dag", "--output", "json")
    assert (run["run_id"], run["task"], run["state"], run["devices"]) == ("run", "train", "running", "cpu-0")
    assert airflow_tf("runs", "--dag", "other", "--output", "json")[0] == 0

    code, [result] = airflow_tf("cancel", "run", "--output", "json")
    assert code == 0
    assert (result["result"], result["left"]) == ("stopped", "")
    assert not is_alive(pid)
    assert watch.end().state is AttemptState.STOPPED
    assert gang.ledger.member(gang.key, 0) is None


def test_a_gang_whose_supervisor_died_is_cancelled_by_a_sweep(airflow_tf, gang, installation):
    watch = gang.start(SLEEP)
    pid = int(watch.line("pid "))
    wait_until_running(gang)
    kill(gang.supervisor_pid(), signal.SIGKILL)
    wait_for(lambda: not is_alive(pid), "the replica ends with its supervisor")
    code, [result] = airflow_tf("cancel", gang.key.key[:6], "--output", "json")
    assert code == 0
    assert result["result"] == "stopped"
    assert gang.ledger.member(gang.key, 0) is None
    lock = DeviceLock(installation.lock_dir, "cpu-0")
    assert lock.try_acquire()
    lock.release()


def test_cancelling_what_has_ended_says_so(airflow_tf, gang):
    gang.start("pass").end()
    code, [result] = airflow_tf("cancel", "run", "--output", "json")
    assert (code, result["result"]) == (0, "had ended")


def test_cancelling_what_does_not_exist_fails_with_the_remedy(airflow_tf):
    assert airflow_tf("cancel", "nothing") == (
        1,
        "airflow tf cancel: no training run 'nothing'. List them with 'airflow tf runs'.",
    )


def test_at_the_deadline_the_rest_is_named(gang, installation):
    watch = gang.start(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP, kill_grace_seconds=60.0
    )
    pid = int(watch.line("pid "))
    wait_until_running(gang)
    canceller = Canceller(gang.ledger, installation, "me")
    [row] = canceller.cancel(find_gangs(LedgerReader(gang.ledger), "run"), timeout_seconds=0.0)
    assert row["result"] == "still running"
    assert row["left"].startswith(f"replica 0 is running (pid {pid}); replica 0 holds cpu-0 on ")
    os.kill(pid, signal.SIGKILL)
    watch.end()


def test_a_name_must_say_which_run(gang):
    other = gang.key.__class__(gang.key.installation, "other_dag", "run", "train")
    gang.ledger.open_gang(other, 1, str(gang.folder))
    reader = LedgerReader(gang.ledger)
    with pytest.raises(LedgerError, match=r"'run' names 2 training runs: .* Give one of these keys"):
        find_gangs(reader, "run")
    assert [run.dag_id for run in find_gangs(reader, other.key[:10])] == ["other_dag"]
