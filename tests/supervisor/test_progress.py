"""Replicas that do not get on: what counts as progress, who is blamed, and what is left in their output."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.supervisor import progress, stacks
from airflow_tf.supervisor.attempt import Attempt, ReplicaRun
from airflow_tf.supervisor.progress import NoProgress, Signs, Stragglers, StragglerWatch
from airflow_tf.supervisor.stacks import Target, show_stacks
from tests.supervisor.harness import Gang, kill, wait_for

REPORT = (
    "import json, os, time\n"
    "def report(step):\n"
    "    with open(os.environ['AIRFLOW_TF_METRICS_FILE'], 'a') as file: file.write(json.dumps({'step': step}) + '\\n')\n"
)


def test_siblings_are_compared_every_few_seconds_and_one_alone_is_not_looked_at(monkeypatch) -> None:
    looked, now = [], [100.0]
    monkeypatch.setattr(progress.results, "last_step", looked.append)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    runs: Any = {number: SimpleNamespace(has_ended=False, folder=number) for number in range(2)}
    watch = StragglerWatch()
    watch.look({0: runs[0]})
    assert looked == []
    for _ in range(12):
        watch.look(runs)
        now[0] += 1.0
    assert looked == [0, 1] * 3


def idle_after(looks: list[dict[int, Signs]], timeout: float = 3.0) -> list[int | None]:
    """Look once a second; return who was found to hang at each look."""
    decision = NoProgress(timeout, longest_look_seconds=1.0)
    stalls = [decision.look(signs, float(now)) for now, signs in enumerate(looks)]
    return [None if stall is None else stall.replica for stall in stalls]


def alone(*signs: Signs) -> list[dict[int, Signs]]:
    return [{0: sign} for sign in signs]


@pytest.mark.parametrize(
    ("looks", "hangs"),
    [
        (alone(*[Signs(step=7)] * 4), [None, None, None, 0]),
        (alone(Signs(step=1), Signs(step=1), Signs(step=2), Signs(step=2), Signs(step=2)), [None] * 5),
        # a checkpoint that is being written is progress
        (alone(*[Signs(step=7, checkpoint_ns=n) for n in range(5)]), [None] * 5),
        # output is progress only of a program that reports no steps
        (alone(*[Signs(output_bytes=n) for n in range(5)]), [None] * 5),
        (alone(*[Signs(step=7, output_bytes=n) for n in range(4)]), [None, None, None, 0]),
        (alone(*[Signs()] * 4), [None, None, None, 0]),
        # a resumed program may begin at a smaller step
        (alone(Signs(step=9), Signs(step=9), Signs(step=3), Signs(step=3), Signs(step=3)), [None] * 5),
    ],
)
def test_progress_of_one(looks: list[dict[int, Signs]], hangs: list[int | None]) -> None:
    assert idle_after(looks) == hangs


def test_a_member_that_reports_nothing_is_not_blamed_while_others_get_on() -> None:
    looks = [{0: Signs(step=n), 1: Signs(), 2: Signs(step=n)} for n in range(6)]
    assert idle_after(looks) == [None] * 6


def test_a_member_that_reports_nothing_has_the_whole_time_once_the_others_have_ended() -> None:
    looks = [{0: Signs(step=n), 1: Signs()} for n in range(6)] + [{1: Signs()}] * 4
    assert idle_after(looks) == [None] * 9 + [1]


@pytest.mark.parametrize("evaluator_is_left", [True, False])
def test_an_evaluator_that_is_left_alone_is_never_a_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluator_is_left: bool
) -> None:
    runs = {number: running(tmp_path / str(number), number) for number in range(2)}
    if evaluator_is_left:
        runs[1].launch = runs[1].launch.for_attempt(watched_folder=runs[0].launch.checkpoint_folder)
    now, notes = 0.0, []

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now <= 3540:
            (runs[0].folder / "metrics.jsonl").write_text(json.dumps({"step": now}) + "\n")
        else:
            runs[0].process = None
        if now > 7200:
            raise TimeoutError

    monkeypatch.setattr(progress, "LOOK_SECONDS", 60.0)
    monkeypatch.setattr(progress, "asyncio", SimpleNamespace(sleep=sleep, to_thread=asyncio.to_thread))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(progress, "show_stacks", lambda *_: None)
    watch = progress.ProgressWatch(1800.0)(Attempt(runs, notes.append))
    if evaluator_is_left:
        with pytest.raises(TimeoutError):
            asyncio.run(watch)
        assert notes == []
    else:
        assert asyncio.run(watch).replica == 1
        assert now == 3600 + 1800


def running(folder: Path, number: int) -> ReplicaRun:
    """Return a run whose process runs for ever, as far as can be seen."""
    folder.mkdir()
    launch = ReplicaLaunch(
        replica=number, count=2, entrypoint="m:f", code_folder="", folder=str(folder),
        checkpoint_folder=str(folder / "checkpoints"),
    )  # fmt: skip
    run = ReplicaRun(launch, testify=lambda _: pytest.fail("nothing failed"))
    process: Any = SimpleNamespace(pid=os.getpid(), send=lambda _: None, status=SimpleNamespace(done=lambda: False))
    run.process = process
    return run


def test_a_replica_whose_files_cannot_be_read_is_not_ended_and_the_others_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    async def sleep(_: float) -> None:
        nonlocal now
        now += 60.0

    runs = {number: running(tmp_path / f"{number}", number) for number in range(2)}
    (runs[0].folder / "metrics.jsonl").mkdir()
    monkeypatch.setattr(progress, "LOOK_SECONDS", 60.0)
    monkeypatch.setattr(progress, "asyncio", SimpleNamespace(sleep=sleep, to_thread=asyncio.to_thread))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(progress, "show_stacks", lambda *_: None)
    assert asyncio.run(progress.ProgressWatch(1800.0)(Attempt(runs, lambda _: None))).replica == 1
    progress.StragglerWatch().look(runs)


def test_the_member_that_stood_still_first_is_blamed() -> None:
    looks = [{0: Signs(step=min(n, 2)), 1: Signs(step=0)} for n in range(5)]
    assert idle_after(looks) == [None, None, None, 1, 1]


def test_time_in_which_the_supervisor_itself_stood_still_does_not_count() -> None:
    decision = NoProgress(3.0, longest_look_seconds=1.0)
    assert decision.look({0: Signs(step=1)}, 0.0) is None
    assert decision.look({0: Signs(step=1)}, 1000.0) is None
    assert decision.look({0: Signs(step=1)}, 1002.0) is None
    stall = decision.look({0: Signs(step=1)}, 1003.0)
    assert stall is not None
    assert "the last step is 1" in stall.sign


def test_a_straggler_is_named_once() -> None:
    decision = Stragglers(window_seconds=10.0)
    looks = [(float(now), {0: 10 * now, 1: 9 * now, 2: 4 * now, 3: None}) for now in range(0, 40, 5)]
    said = [decision.look(steps, now) for now, steps in looks]
    (named,) = [notes for notes in said if notes]
    assert list(named) == [2]
    assert "replica 2 is slow: step 40, 4 steps per second; the median is step 90, 9 steps per second" in named[2]


def test_one_alone_or_a_slow_beginning_is_no_straggler() -> None:
    alone = Stragglers(window_seconds=10.0)
    assert [alone.look({0: now}, float(now)) for now in range(0, 40, 5)] == [{}] * 8
    late = Stragglers(window_seconds=10.0)
    assert late.look({0: 100, 1: 100}, 0.0) == {}
    assert late.look({0: 200, 1: 110}, 5.0) == {}
    assert late.look({0: 300, 1: 300}, 10.0) == {}


def test_an_attempt_that_begins_again_is_not_slow_for_it() -> None:
    decision = Stragglers(window_seconds=10.0)
    steps = [(float(now), {0: now, 1: now if now < 20 else now - 20}) for now in range(0, 60, 5)]
    assert [decision.look(found, now) for now, found in steps] == [{}] * len(steps)


def test_a_stopped_process_is_told_by_its_state(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: stacks.is_frozen(process.pid), "the stop")
        sent: list[int] = []
        began = time.monotonic()
        show_stacks([Target(3, process.pid, sent.append, tmp_path / "output.log")], "no progress", deadline_seconds=600)
        assert time.monotonic() - began < 60, "it was waited for"
        assert sent == []
        text = (tmp_path / "output.log").read_text()
        assert f"no progress; replica 3 (pid {process.pid}) is in state T (stopped)" in text
        assert "it cannot write its stacks" in text
    finally:
        process.kill()
        process.wait()


def test_a_process_that_does_not_answer_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    began = time.monotonic()
    target = Target(0, os.getpid(), lambda _: None, tmp_path / "output.log")
    show_stacks([target], "no progress", deadline_seconds=0.3)
    assert 0.3 <= time.monotonic() - began < 60


def test_py_spy_is_asked_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "py-spy"
    program.write_text('#!/bin/sh\necho "spied with $*"\nexec sleep 60\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    target = Target(0, os.getpid(), lambda _: None, tmp_path / "output.log")
    show_stacks([target], "no progress", deadline_seconds=0.3)
    assert f"spied with dump --nonblocking --pid {os.getpid()}" in (tmp_path / "output.log").read_text()


@pytest.mark.usefixtures("no_processes_left")
def test_a_hanging_program_shows_its_stacks_ends_and_is_started_again(make_gang: Callable[..., Gang]) -> None:
    script = REPORT + (
        "import threading\n"
        "report(1)\n"
        "def stuck_somewhere():\n    time.sleep(300)\n"
        "if os.environ['AIRFLOW_TF_ATTEMPT'] == '1':\n"
        "    threading.Thread(target=stuck_somewhere, daemon=True).start()\n"
        "    time.sleep(300)\n"
    )
    watch = make_gang().start(script, progress_timeout_seconds=1.5, restarts=1)
    assert watch.end().state is AttemptState.SUCCEEDED
    text = "\n".join(watch.lines)
    assert "no progress for" in text
    assert "stuck_somewhere" in text
    (restart,) = [line for line in watch.infos if line.startswith("restart 1: no progress for")]
    assert "the last step is 1" in restart


@pytest.mark.tensorflow
@pytest.mark.usefixtures("no_processes_left")
def test_a_fork_of_the_zygote_shows_its_stacks_too(make_gang: Callable[..., Gang]) -> None:
    script = "import time\ndef stuck_in_a_fork():\n    time.sleep(300)\nstuck_in_a_fork()\n"
    watch = make_gang(start_method="zygote").start(script, progress_timeout_seconds=1.0)
    assert watch.end().cause is ExitCause.HANG
    assert "stuck_in_a_fork" in "\n".join(watch.lines)


@pytest.mark.usefixtures("no_processes_left")
def test_a_stopped_program_is_ended_as_hanging_and_its_state_is_said(make_gang: Callable[..., Gang]) -> None:
    script = (
        REPORT
        + "for step in range(100000):\n    report(step)\n    print('pid', os.getpid(), flush=True)\n    time.sleep(0.05)\n"
    )
    watch = make_gang().start(script, progress_timeout_seconds=1.5, kill_grace_seconds=0.5)
    kill(int(watch.line("pid ")), signal.SIGSTOP)
    outcome = watch.end()
    assert (outcome.state, outcome.cause) == (AttemptState.FAILED, ExitCause.HANG)
    assert "T (stopped)" in outcome.message


@pytest.mark.usefixtures("no_processes_left")
def test_a_program_that_reports_nothing_is_not_ended_unless_asked(make_gang: Callable[..., Gang]) -> None:
    assert make_gang().start("import time\ntime.sleep(2)").end().state is AttemptState.SUCCEEDED


@pytest.mark.usefixtures("no_processes_left")
def test_a_crash_of_native_code_leaves_its_stack(make_gang: Callable[..., Gang]) -> None:
    watch = make_gang().start(
        "import os, signal\ndef crashing():\n    os.kill(os.getpid(), signal.SIGSEGV)\ncrashing()"
    )
    outcome = watch.end()
    assert (outcome.cause, outcome.exit_code) == (ExitCause.KILLED, -signal.SIGSEGV)
    assert "native code crashed" in outcome.message
    assert "in crashing" in "\n".join(watch.lines)


@pytest.mark.usefixtures("no_processes_left")
def test_a_memory_limit_that_cannot_be_enforced_is_refused_before_the_start(
    make_gang: Callable[..., Gang], monkeypatch: Any
) -> None:
    watch = make_gang().start("print('ran')", memory_limit_bytes=2**30)
    outcome = watch.end()
    if outcome.state is AttemptState.SUCCEEDED:  # this machine delegates cgroups
        return
    assert outcome.cause is ExitCause.CONFIG_REFUSED
    assert "train.memory_limit cannot be enforced on this host" in outcome.message
    assert watch.lines == []


TWO_WORKERS: dict[str, Any] = {"strategy": "sync", "roles": {"worker": 2}}
IN_STEP = REPORT + (
    "import pathlib\n"
    "me = pathlib.Path(os.environ['AIRFLOW_TF_METRICS_FILE'])\n"
    "replica, attempt = os.environ['AIRFLOW_TF_REPLICA'], os.environ['AIRFLOW_TF_ATTEMPT']\n"
    "peer = pathlib.Path(str(me).replace(f'replica-{replica}', f'replica-{1 - int(replica)}'))\n"
    "def all_reduce(step):\n"
    "    while not peer.exists() or len(peer.read_text().splitlines()) < step: time.sleep(0.02)\n"
    "print('pid', os.getpid(), flush=True)\n"
    "for step in range(10 if attempt == '2' else 10**6):\n"
    "    report(step)\n"
    "    all_reduce(step)\n"
    "    time.sleep(0.05)\n"
)


@pytest.mark.usefixtures("no_processes_left")
def test_a_stopped_member_of_a_gang_is_blamed_and_all_show_their_stacks(make_gang: Callable[..., Gang]) -> None:
    """As reported of MultiWorkerMirroredStrategy: the others wait for ever for a worker that does not go on."""
    gang = make_gang(count=2)
    fields: dict[str, Any] = TWO_WORKERS | {"progress_timeout_seconds": 1.5, "restarts": 1}
    first = gang.start(IN_STEP, replica=0, **fields)
    second = gang.start(IN_STEP, replica=1, **fields)
    kill(int(second.line("pid ")), signal.SIGSTOP)
    assert first.end().state is second.end().state is AttemptState.SUCCEEDED
    assert any("restart 1: worker 1: no progress for" in info and "T (stopped)" in info for info in first.infos)
    assert "all_reduce" in "\n".join(first.lines)
    assert "it cannot write its stacks" in "\n".join(second.lines)
