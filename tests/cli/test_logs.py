"""The output of replicas on the command line: files as a supervisor leaves them, and a gang that really runs."""

from __future__ import annotations

import threading

import pytest

from airflow_tf.cli.logs import LogReader, Selection, last_lines
from airflow_tf.core.identity import RunFolders, View
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import AttemptState
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.supervisor.results import OUTPUT_FILE, replica_folder
from tests.supervisor.harness import wait_for


@pytest.fixture
def ran(ledger, installation, reserve):
    """A gang of two replicas: the first ended in its second attempt, the second in its first."""
    key, _ = reserve("flights", 2)
    folder = RunFolders(installation.home, "flights", "run").gang(key)
    ledger.open_gang(key, 2, str(folder))
    for replica, attempts in enumerate([["a first\n", "a second\na third\n"], ["b first\nb second"]]):
        ledger.enter(key, replica, View("a", 1, 1))
        member = ledger.member(key, replica)
        for number, text in enumerate(attempts, 1):
            ledger.start_attempt(key, replica, 1, member, f"{replica}.{number}")
            ledger.end_attempt(key, replica, 1, number, Outcome(AttemptState.STOPPED))
            output = replica_folder(folder, replica, 1) / f"attempt-{number}" / OUTPUT_FILE
            output.parent.mkdir(parents=True)
            output.write_text(text)
        ledger.release(member)
    return folder


def test_all_replicas_are_shown_each_line_with_its_replica(airflow_tf, ran):
    assert airflow_tf("logs", "run") == (
        0,
        "[train 0] a second\n[train 0] a third\n[train 1] b first\n[train 1] b second\n",
    )


def test_one_replica_is_shown_as_it_wrote(airflow_tf, ran):
    assert airflow_tf("logs", "run", "--replica", 1) == (0, "b first\nb second\n")


def test_an_earlier_attempt_is_shown(airflow_tf, ran):
    assert airflow_tf("logs", "run", "--replica", 0, "--attempt", 1) == (0, "a first\n")


def test_the_last_lines_are_shown(airflow_tf, ran):
    assert airflow_tf("logs", "run", "-n", 1) == (0, "[train 0] a third\n[train 1] b second\n")


def test_following_what_has_ended_ends(airflow_tf, ran):
    assert airflow_tf("logs", "run", "--replica", 1, "--follow") == (0, "b first\nb second\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--replica", 7), "there is no replica 7: there are 0, 1. Give one of these by --replica."),
        (
            ("--replica", 0, "--attempt", 9),
            "replica 0 has no attempt 9: it has 2. Leave --attempt out to see the last one.",
        ),
    ],
)
def test_what_does_not_exist_is_refused(airflow_tf, ran, words, said):
    assert airflow_tf("logs", "run", *words) == (1, f"airflow tf logs: {said}")


def test_what_has_not_started_has_no_output(airflow_tf, reserve):
    reserve("flights")
    code, said = airflow_tf("logs", "run")
    assert code == 1
    assert "there is no output of flights / run / train yet" in said


def test_files_of_another_host_are_not_taken_for_empty(airflow_tf, ran):
    ran.rename(ran.with_name("elsewhere"))
    code, said = airflow_tf("logs", "run")
    assert code == 1
    assert f"they were in {ran}" in said


@pytest.mark.parametrize("block", [3, 64 * 1024])
@pytest.mark.parametrize(
    ("text", "lines", "shown"),
    [
        ("", 3, ""),
        ("one\n", 0, ""),
        ("one\ntwo\n", 1, "two\n"),
        ("one\ntwo\n", 2, "one\ntwo\n"),
        ("one\ntwo\n", 9, "one\ntwo\n"),
        ("one\ntwo", 1, "two"),
        ("one\ntwo", 2, "one\ntwo"),
        ("\n\n\n", 2, "\n\n"),
        ("one\n" * 9 + "last\n", 2, "one\nlast\n"),
    ],
)
def test_the_last_lines_begin_where_a_reader_would_say(tmp_path, monkeypatch, block, text, lines, shown):
    monkeypatch.setattr("airflow_tf.cli.logs._BLOCK_BYTES", block)
    path = tmp_path / "output.log"
    path.write_text(text)
    assert text.encode()[last_lines(path, lines) :].decode() == shown


def test_the_last_lines_are_looked_for_in_what_is_left_of_a_rotated_output(tmp_path):
    path = tmp_path / "output.log"
    path.write_bytes(b"\0" * 100 + b"kept\n")
    path.with_name("output.log.hole").write_text('{"end": 100}')
    assert last_lines(path, 5) == 100


@pytest.mark.usefixtures("no_processes_left")
def test_a_running_gang_is_followed_over_a_restart_until_it_ends(gang, installation):
    program = (
        "import os, time, pathlib\n"
        "attempt = os.environ['AIRFLOW_TF_ATTEMPT']\n"
        "print('begin', attempt, flush=True)\n"
        f"while not pathlib.Path({str(gang.folder)!r}, 'go-' + attempt).exists(): time.sleep(0.05)\n"
        "for n in range(3): print('line', attempt, n)\n"
        "os._exit(0) if attempt == '2' else os.kill(os.getpid(), 9)\n"
    )
    watched = gang.start(program, restarts=1)
    lines, error = [], []
    shown = LogReader(LedgerReader(gang.ledger), [gang.key.key], Selection(), lines.append)

    def follow():
        try:
            shown.follow()
        except BaseException as caught:  # noqa: BLE001 (handed to the test)
            error.append(caught)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    for attempt in (1, 2):
        wait_for(lambda: f"begin {attempt}" in lines or error, "the attempt is shown while it runs")  # noqa: B023
        (gang.folder / f"go-{attempt}").touch()
    watched.end()
    thread.join(30)
    assert not thread.is_alive()
    assert error == []
    assert lines == [
        line for attempt in (1, 2) for line in (f"begin {attempt}", *(f"line {attempt} {n}" for n in range(3)))
    ]
