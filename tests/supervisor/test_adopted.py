"""A supervisor collects what it inherits as a subreaper, and nothing that somebody waits for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.supervisor.harness import Gang, wait_for

pytestmark = pytest.mark.usefixtures("no_processes_left")

CHILDREN = """
import os
from airflow_tf.supervisor.processes import reap_adopted

def ended(own_session):
    pid = os.fork()
    if not pid:
        if own_session:
            os.setsid()
        os._exit(7)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid

def is_left(pid):
    return os.path.exists(f"/proc/{pid}")

reap_adopted(set())
first, second = ended(True), ended(True)
reap_adopted(set())
assert not is_left(first) and not is_left(second)
replica = ended(True)
reap_adopted({replica})
assert os.waitpid(replica, 0) == (replica, 7 << 8)
helper = ended(False)
reap_adopted(set())
assert os.waitpid(helper, 0) == (helper, 7 << 8)
"""
FORGETS = """
import os, subprocess, sys, time
FORGOTTEN = "import os, time; print('forgotten', os.getpid(), flush=True); time.sleep(0.5)"
STARTS = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {FORGOTTEN!r}])"
subprocess.run([sys.executable, "-c", STARTS], check=True)
time.sleep(300)
"""


def test_what_has_ended_is_collected_unless_it_is_ours_or_of_our_session() -> None:
    done = subprocess.run([sys.executable, "-c", CHILDREN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_process_that_a_program_forgot_is_no_zombie_while_the_program_runs(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang()
    watch = gang.start(FORGETS)
    pid = watch.line("forgotten ")
    wait_for(lambda: not Path("/proc", pid).exists(), "the end of what was forgotten, without a trace")
    assert watch.outcome is None
    watch.view.stop("the test is over")
    watch.end()
