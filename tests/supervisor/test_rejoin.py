"""Members of a gang that are started again alone, and evaluators, as scripts without TensorFlow."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from airflow_tf.core.states import AttemptState, ExitCause
from tests.supervisor.harness import Gang, Watch, kill, wait_for, write_checkpoint
from tests.supervisor.test_together import JOINS, MEMBER

pytestmark = pytest.mark.usefixtures("no_processes_left")

ASYNC: dict[str, Any] = {"strategy": "async", "roles": {"chief": 1, "worker": 1, "ps": 1}, "restarts": 1}
WATCHED: dict[str, Any] = {"strategy": "sync", "roles": {"worker": 1, "evaluator": 1}}
SERVES = """
if role != "chief":
    time.sleep(300)
while not os.path.exists("../../go"):
    time.sleep(0.02)
"""
EVALUATES = MEMBER + (
    "folder, ended = os.environ['AIRFLOW_TF_CHECKPOINT_DIR'], os.environ.get('AIRFLOW_TF_TRAINING_ENDED_FILE')\n"
    "print('folder', folder, ended, flush=True)\n"
    "if role == 'worker':\n"
    "    server = listen()\n"
    "    while not os.path.exists(os.path.join(folder, 'go')): time.sleep(0.02)\n"
    "    sys.exit(0)\n"
)


def all_lines(watch: Watch, prefix: str) -> list[str]:
    lines = [line for text in watch.lines for line in text.splitlines()]
    return [line[len(prefix) :] for line in lines if line.startswith(prefix)]


def attempts(gang: Gang) -> list[int]:
    return [record.attempts for record in gang.ledger.replicas(gang.key).values()]


def test_a_killed_worker_is_started_again_at_its_address_while_the_others_go_on(
    make_gang: Callable[..., Gang],
) -> None:
    gang = make_gang(count=3)
    chief, worker, server = [gang.start(JOINS + SERVES, replica=number, **ASYNC) for number in range(3)]
    for watch in (chief, worker, server):
        watch.line("attempt ")
    kill(int(worker.line("pid ")), signal.SIGKILL)
    wait_for(lambda: len(all_lines(worker, "attempt ")) == 2, "a second process of the worker")
    (gang.folder / "replica-0" / "go").touch()
    assert {watch.end().state for watch in (chief, worker, server)} == {AttemptState.SUCCEEDED}
    assert attempts(gang) == [1, 2, 1]
    assert len(set(all_lines(worker, "port "))) == 1
    assert any(info.startswith("restart 1: the process was killed by SIGKILL") for info in worker.infos)
    assert not any(info.startswith("restart") for info in chief.infos)


def test_a_worker_beyond_the_budget_fails_the_gang(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(count=3)
    watches = [gang.start(JOINS + SERVES, replica=number, **ASYNC) for number in range(3)]
    for time in (1, 2):
        wait_for(lambda time=time: len(all_lines(watches[1], "pid ")) == time, f"process {time} of the worker")
        kill(int(all_lines(watches[1], "pid ")[-1]), signal.SIGKILL)
    assert [watch.end().state for watch in watches] == [AttemptState.FAILED] * 3
    assert "ended because worker 0 failed: the process was killed by SIGKILL" in watches[0].end().message
    assert attempts(gang) == [1, 2, 1]


def test_an_evaluator_is_alone_finds_the_checkpoints_of_the_training_and_outlives_it(
    make_gang: Callable[..., Gang],
) -> None:
    gang = make_gang(count=2)
    script = EVALUATES + (
        "while not os.path.exists(ended): time.sleep(0.02)\n"
        "print('cluster', sorted(config['cluster']), sorted(os.listdir(folder)), flush=True)\n"
        "step(7)\n"
    )
    worker, evaluator = [gang.start(script, replica=number, **WATCHED) for number in range(2)]
    folder, told = worker.line("folder ").split()
    assert told == "None"
    assert evaluator.line("folder ").split()[0] == folder
    write_checkpoint(gang.folder / "replica-0" / "generation-1" / "checkpoints" / "ck-7")
    (gang.folder / "replica-0" / "generation-1" / "checkpoints" / "go").touch()
    assert worker.end().state is evaluator.end().state is AttemptState.SUCCEEDED
    assert evaluator.line("cluster ") == "['evaluator'] ['ck-7.data-00000-of-00001', 'ck-7.index', 'go']"
    assert evaluator.end().metrics == {"step": 7.0}


def test_training_does_not_end_with_its_evaluator_whose_own_task_fails(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(count=2)
    script = EVALUATES + "sys.exit(3)\n"
    worker, evaluator = [gang.start(script, replica=number, **WATCHED) for number in range(2)]
    wait_for(lambda: "the replica has ended; its gang goes on" in evaluator.infos, "the end of the evaluator")
    (gang.folder / "replica-0" / "generation-1" / "checkpoints" / "go").touch()
    assert worker.end().state is AttemptState.SUCCEEDED
    outcome = evaluator.end()
    assert (outcome.state, outcome.cause, outcome.exit_code) == (AttemptState.FAILED, ExitCause.USER_ERROR, 3)


def test_a_killed_evaluator_is_started_again_alone(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(count=2)
    script = EVALUATES + "while not os.path.exists(ended): time.sleep(0.02)\n"
    plan = WATCHED | {"restarts": 1}
    worker, evaluator = [gang.start(script, replica=number, **plan) for number in range(2)]
    kill(int(evaluator.line("pid ")), signal.SIGKILL)
    wait_for(lambda: len(all_lines(evaluator, "folder ")) == 2, "a second process of the evaluator")
    assert len({line.split()[0] for line in all_lines(evaluator, "folder ")}) == 1
    (gang.folder / "replica-0" / "generation-1" / "checkpoints" / "go").touch()
    assert worker.end().state is evaluator.end().state is AttemptState.SUCCEEDED
    assert attempts(gang) == [1, 2]
