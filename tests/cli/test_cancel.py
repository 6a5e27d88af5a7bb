"""Cancelling: asked, and by force where nobody hears it."""

from __future__ import annotations

import os
import signal

import pytest

from airflow_tf.cli.cancel import Canceller
from airflow_tf.cli.runs import find_gangs
from airflow_tf.core.states import AttemptState
from airflow_tf.devices.locks import DeviceLock
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.supervisor.find import find_supervisor
from tests.cli.conftest import SLEEP
from tests.supervisor.harness import is_alive, kill, wait_for

DAEMON = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
print('daemon', child.pid, flush=True)
"""

pytestmark = pytest.mark.usefixtures("no_processes_left")


def cancel(gang, timeout_seconds, *, force=False):
    found = find_gangs(LedgerReader(gang.ledger), "run")
    [row] = Canceller(gang.ledger, gang.settings, "me").cancel(found, timeout_seconds, force=force)
    return row


def test_a_running_gang_is_shown_and_cancelled(airflow_tf, gang, wait_until_running):
    watched = gang.start(SLEEP)
    pid = int(watched.line("pid "))
    _, devices = airflow_tf("devices", "--output", "json")
    assert [(row["device"], row["state"], [holder["gang"] for holder in row["holders"]]) for row in devices] == [
        ("cpu-0", "busy", ["dag / run / train"]),
        ("cpu-1", "free", []),
    ]
    wait_until_running(gang)
    code, [result] = airflow_tf("cancel", "run", "--output", "json")
    assert code == 0
    assert (result["result"], result["left"], result["remedy"]) == ("stopped", [], "")
    assert not is_alive(pid)
    assert watched.end().state is AttemptState.STOPPED
    assert gang.ledger.member(gang.key, 0) is None


def test_a_gang_whose_supervisor_died_is_cancelled_by_a_sweep(airflow_tf, gang, installation, wait_until_running):
    watched = gang.start(SLEEP)
    pid = int(watched.line("pid "))
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


def test_a_supervisor_that_hears_nothing_is_named_and_ended_by_force_with_all_its_processes(gang, wait_until_running):
    watched = gang.start(DAEMON + SLEEP)
    pid, daemon = int(watched.line("pid ")), int(watched.line("daemon "))
    wait_until_running(gang)
    supervisor = find_supervisor(gang.folder)
    assert supervisor == gang.supervisor_pid()
    kill(supervisor, signal.SIGSTOP)
    row = cancel(gang, timeout_seconds=0.0)
    assert row["result"] == "still running"
    assert f"(pid {supervisor})" in row["remedy"]
    assert "--force" in row["remedy"]
    assert is_alive(pid)

    row = cancel(gang, timeout_seconds=0.0, force=True)
    assert (row["result"], row["left"]) == ("killed", [])
    assert not any(is_alive(process) for process in (supervisor, pid, daemon))
    assert gang.ledger.member(gang.key, 0) is None
    assert find_supervisor(gang.folder) is None


def test_force_does_not_kill_what_ends_in_time(airflow_tf, gang, wait_until_running):
    watched = gang.start("import signal\nsignal.signal(signal.SIGTERM, lambda *_: exit(0))\n" + SLEEP)
    watched.line("pid ")
    wait_until_running(gang)
    _, [row] = airflow_tf("cancel", "run", "--force", "--timeout", "1m", "--output", "json")
    assert row["result"] == "stopped"
    watched.end()


def test_cancelling_what_has_ended_says_so(airflow_tf, gang):
    gang.start("pass").end()
    code, [result] = airflow_tf("cancel", "run", "--output", "json")
    assert (code, result["result"]) == (0, "had ended")


def test_cancelling_what_does_not_exist_fails_with_the_remedy(airflow_tf):
    assert airflow_tf("cancel", "nothing") == (
        1,
        "airflow tf cancel: no training run 'nothing'. List them with 'airflow tf runs'.",
    )


def test_at_the_deadline_the_rest_is_named(gang, wait_until_running):
    watched = gang.start(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP, kill_grace_seconds=60.0
    )
    pid = int(watched.line("pid "))
    wait_until_running(gang)
    row = cancel(gang, timeout_seconds=0.0)
    assert row["result"] == "still running"
    assert row["left"][0] == f"replica 0 is running (pid {pid})"
    assert row["left"][1].startswith("replica 0 holds cpu-0 on ")
    os.kill(pid, signal.SIGKILL)
    watched.end()
