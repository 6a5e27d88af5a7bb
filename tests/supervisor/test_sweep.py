"""The sweep finds and ends a whole tree, whatever its processes did to get away, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_tf.core.identity import FENCE_VARIABLE, make_token
from airflow_tf.supervisor.sweep import ProcessMark, find_tree, kill_tree, mark_of

pytestmark = pytest.mark.usefixtures("no_processes_left")

TOKEN = make_token("test", 7, 0, 1)
OTHER = make_token("test", 8, 0, 1)

SAY_PID = "import os, sys, time, signal\ndef ready(n):\n open(sys.argv[1] + '/' + n, 'w').write(str(os.getpid()))\n"
SLEEP = "time.sleep(600)\n"
DOUBLE_FORK = (
    "if os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  ready('daemon')\n  time.sleep(600)\n os._exit(0)\n"
)
IGNORE_TERM = (
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif os.fork() == 0:\n ready('grandchild')\n time.sleep(600)\n"
)
THREAD_OUTLIVES_MAIN = (
    "import ctypes, threading\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    "ready('threaded')\nctypes.CDLL(None).pthread_exit(None)\n"
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start_program(body: str, *, token: str | None = TOKEN, **options: object) -> subprocess.Popen[bytes]:
        environment = {key: value for key, value in os.environ.items() if key != FENCE_VARIABLE}
        if token is not None:
            environment[FENCE_VARIABLE] = token
        command = [sys.executable, "-c", SAY_PID + body, str(tmp_path)]
        started.append(subprocess.Popen(command, env=environment, **options))  # type: ignore[call-overload]
        return started[-1]

    yield start_program
    for process in started:
        process.kill()
        process.wait(timeout=10)


def pid_of(folder: Path, name: str) -> int:
    return wait_for(lambda: int((folder / name).read_text()))


def wait_for(read: Callable[[], int], seconds: float = 20.0) -> int:
    deadline = time.monotonic() + seconds
    while True:
        with suppress(FileNotFoundError, ValueError):
            return read()
        assert time.monotonic() < deadline, "the program did not get ready"
        time.sleep(0.01)


def is_living(pid: int) -> bool:
    try:
        mark_of(pid)
    except ProcessLookupError:
        return False
    return True


def test_ends_a_daemon_that_forked_twice_and_made_its_own_session(start, tmp_path):
    start(DOUBLE_FORK).wait(timeout=20)
    daemon = pid_of(tmp_path, "daemon")
    assert find_tree(TOKEN) == [daemon]
    assert kill_tree(TOKEN) == []
    assert not is_living(daemon)


def test_ends_a_grandchild_that_ignores_term(start, tmp_path):
    parent = start(IGNORE_TERM + SLEEP)
    grandchild = pid_of(tmp_path, "grandchild")
    assert find_tree(TOKEN) == sorted([parent.pid, grandchild])
    assert kill_tree(TOKEN) == []
    assert not is_living(grandchild)
    assert parent.wait(timeout=10) == -9


def test_ends_a_stopped_process(start, tmp_path):
    process = start("ready('stopped')\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    pid_of(tmp_path, "stopped")
    assert kill_tree(TOKEN) == []
    assert process.wait(timeout=10) == -9


def test_ends_a_process_whose_main_thread_has_ended(start, tmp_path):
    process = start(THREAD_OUTLIVES_MAIN)
    pid_of(tmp_path, "threaded")
    mark = mark_of(process.pid)
    state = Path(f"/proc/{process.pid}/stat")
    wait_for(lambda: int(state.read_text().rpartition(")")[2].split()[0] == "Z") or int("not yet"))
    assert find_tree("", [mark]) == [process.pid]
    assert kill_tree("", [mark]) == []
    assert process.wait(timeout=10) == -9


def test_leaves_processes_of_another_token_or_of_none_alone(start, tmp_path):
    other = start("ready('other')\n" + SLEEP, token=OTHER)
    unmarked = start("ready('unmarked')\n" + SLEEP, token=None)
    ours = start("ready('ours')\n" + SLEEP)
    for name in ("other", "unmarked", "ours"):
        pid_of(tmp_path, name)
    assert kill_tree(TOKEN) == []
    assert ours.wait(timeout=10) == -9
    assert is_living(other.pid)
    assert is_living(unmarked.pid)
    assert find_tree(OTHER) == [other.pid]


def test_an_empty_token_matches_nothing(start, tmp_path):
    process = start("ready('empty')\n" + SLEEP, token="")
    pid_of(tmp_path, "empty")
    assert process.pid not in find_tree("")


def test_finds_a_marked_process_without_token_and_its_session_after_the_leader_is_gone(start, tmp_path):
    leader = start(
        "if os.fork() == 0:\n ready('member')\n time.sleep(600)\n" + SLEEP, token=None, start_new_session=True
    )
    member = pid_of(tmp_path, "member")
    mark = mark_of(leader.pid)
    assert mark.leads_session
    assert find_tree(TOKEN, [mark]) == sorted([leader.pid, member])
    leader.kill()
    leader.wait(timeout=10)
    assert find_tree(TOKEN, [mark]) == [member]
    assert kill_tree(TOKEN, [mark]) == []
    assert not is_living(member)


def test_a_reused_pid_or_session_is_not_the_marked_one(start, tmp_path):
    process = start("ready('new')\n" + SLEEP, token=None, start_new_session=True)
    now = mark_of(pid_of(tmp_path, "new"))
    earlier = ProcessMark(now.pid, now.start_ticks - 1, now.session)
    assert find_tree(TOKEN, [earlier]) == []
    assert kill_tree(TOKEN, [earlier]) == []
    assert process.poll() is None


def test_a_session_member_of_another_attempt_is_not_taken(start, tmp_path):
    leader = start("ready('leader')\n" + SLEEP, token=OTHER, start_new_session=True)
    mark = mark_of(pid_of(tmp_path, "leader"))
    gone = ProcessMark(mark.pid, mark.start_ticks - 1, mark.session)
    assert find_tree(TOKEN, [gone]) == []
    assert leader.poll() is None


def test_the_session_of_a_marked_process_that_does_not_lead_it_is_left_alone(start, tmp_path):
    process = start("ready('plain')\n" + SLEEP, token=None)
    sibling = start("ready('sibling')\n" + SLEEP, token=None)
    mark = mark_of(pid_of(tmp_path, "plain"))
    pid_of(tmp_path, "sibling")
    assert not mark.leads_session
    assert kill_tree(TOKEN, [mark]) == []
    assert process.wait(timeout=10) == -9
    assert is_living(sibling.pid)


def test_never_takes_the_caller_and_does_not_count_zombies(start, monkeypatch):
    assert os.getpid() not in find_tree(TOKEN, [mark_of(os.getpid())])
    process = start("")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert find_tree(TOKEN) == []
    with pytest.raises(ProcessLookupError):
        mark_of(process.pid)


def test_reports_survivors_at_the_deadline(start, tmp_path, monkeypatch):
    process = start("ready('survivor')\n" + SLEEP)
    pid_of(tmp_path, "survivor")
    monkeypatch.setattr("airflow_tf.supervisor.sweep.signal.pidfd_send_signal", lambda *_: None)
    assert kill_tree(TOKEN, deadline_seconds=0.3) == [process.pid]


def test_ends_a_tree_that_keeps_forking(start, tmp_path):
    start("ready('bomb')\nfor n in range(400):\n if os.fork():\n  time.sleep(0.005); os._exit(0)\n" + SLEEP)
    pid_of(tmp_path, "bomb")
    assert kill_tree(TOKEN) == []
    assert find_tree(TOKEN) == []
