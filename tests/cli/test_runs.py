"""Runs and devices as the commands list them."""

from __future__ import annotations

import io
import signal
from datetime import datetime

import pytest
import yaml
from airflow.cli.simple_table import AirflowConsole

from airflow_tf.cli.devices import memory_bar, watch
from airflow_tf.cli.runs import find_gangs
from airflow_tf.core.errors import LedgerError
from airflow_tf.core.identity import GangKey, View
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.ledger.read import LedgerReader
from tests.cli.conftest import SLEEP
from tests.supervisor.harness import is_alive, kill, wait_for

LONG = "worker 1: [red]the [/b] program\n" + "x" * 500


@pytest.fixture
def ended(ledger, reserve):
    """Three gangs of one replica each: one failed, one succeeded, one waits."""

    for name, outcome in (
        ("flights", Outcome(AttemptState.FAILED, ExitCause.USER_ERROR, LONG, 1)),
        ("trains", Outcome(AttemptState.SUCCEEDED, exit_code=0, metrics={"step": 7})),
        ("ships", None),
    ):
        key, member = reserve(name)
        ledger.open_gang(key, 1, f"/nowhere/{name}")
        ledger.enter(key, 0, View("a", 1, 1))
        if outcome is not None:
            ledger.start_attempt(key, 0, 1, member, name)
            ledger.end_attempt(key, 0, 1, 1, outcome)
        ledger.release(member)


def test_no_runs_yet(airflow_tf):
    assert airflow_tf("runs") == (0, "No data found\n")
    assert airflow_tf("runs", "--output", "json") == (0, [])


def test_json_has_every_field_with_its_type(airflow_tf, ended):
    _, rows = airflow_tf("runs", "--dag", "flights", "--output", "json")
    [row] = rows
    assert len(row.pop("run")) == 8
    assert all(datetime.fromisoformat(row.pop(name)) for name in ("since", "started", "ended"))
    assert row == {
        "dag_id": "flights", "run_id": "run", "task": "train", "cancelled_by": None, "replica": 0, "state": "failed",
        "generation": 1, "attempts": 1, "step": None, "devices": [], "pid": None, "cause": "user_error",
        "message": LONG,
    }  # fmt: skip


def test_yaml_has_the_same_rows(airflow_tf, ended):
    _, printed = airflow_tf("runs", "--output", "yaml")
    assert yaml.safe_load(printed) == airflow_tf("runs", "--output", "json")[1]


@pytest.mark.parametrize("output", ["table", "plain"])
def test_a_long_message_that_looks_like_markup_keeps_its_row_in_one_line(airflow_tf, ended, output):
    code, printed = airflow_tf("runs", "--output", output)
    assert code == 0
    [line] = [line for line in printed.splitlines() if "flights" in line]
    assert "[red]the [/b] program" in line
    assert "xxx" not in printed


def test_runs_are_chosen_by_state_and_number(airflow_tf, ended):
    def found(*words):
        return [row["dag_id"] for row in airflow_tf("runs", *words, "--output", "json")[1]]

    assert sorted(found()) == ["flights", "ships", "trains"]
    assert len(found("--limit", 2)) == 2
    assert found("--state", "succeeded") == ["trains"]
    assert found("--state", "waiting") == ["ships"]
    assert found("--state", "waiting", "--dag-id", "trains") == []


@pytest.mark.parametrize("words", [("--limit", "0"), ("--limit", "x"), ("--state", "happy")])
def test_a_wrong_argument_is_a_usage_error(airflow_tf, words):
    with pytest.raises(SystemExit) as caught:
        airflow_tf("runs", *words)
    assert caught.value.code == 2


@pytest.mark.usefixtures("no_processes_left")
def test_a_replica_whose_supervisor_died_is_not_shown_as_running(airflow_tf, gang, wait_until_running):
    watched = gang.start(SLEEP)
    pid = int(watched.line("pid "))
    wait_until_running(gang)
    _, [row] = airflow_tf("runs", "--output", "json")
    assert (row["state"], row["devices"], row["pid"]) == ("running", ["cpu-0"], pid)
    kill(gang.supervisor_pid(), signal.SIGKILL)
    wait_for(lambda: not is_alive(pid), "the replica ends with its supervisor")
    _, [row] = airflow_tf("runs", "--output", "json")
    assert (row["state"], row["pid"]) == ("lost?", None)


@pytest.mark.usefixtures("no_processes_left")
def test_a_replica_that_has_ended_has_no_process(airflow_tf, gang, wait_until_running):
    watched = gang.start(SLEEP)
    wait_until_running(gang)
    kill(int(watched.line("pid ")), signal.SIGKILL)
    watched.end(60)
    assert gang.client.wait_gone(60)
    _, [row] = airflow_tf("runs", "--output", "json")
    assert row["ended"] is not None
    assert row["pid"] is None


def test_a_name_must_say_which_run(ledger, ended):
    reader = LedgerReader(ledger)
    with pytest.raises(LedgerError, match=r"'run' names 3 training runs: .* Give one of these keys"):
        find_gangs(reader, "run")
    key = GangKey(ledger.ledger_id, "trains", "run", "train").key
    assert [run.dag_id for run in find_gangs(reader, key[:10])] == ["trains"]


def test_devices_are_listed_before_anything_ran(airflow_tf):
    code, rows = airflow_tf("devices", "--output", "json")
    assert code == 0
    assert [(row["device"], row["state"], row["holders"]) for row in rows] == [
        ("cpu-0", "free", []),
        ("cpu-1", "free", []),
    ]


def test_a_device_tells_its_holder(airflow_tf, reserve):
    reserve("flights")
    _, [held, _] = airflow_tf("devices", "--output", "json")
    [holder] = held["holders"]
    assert datetime.fromisoformat(holder.pop("since"))
    assert held["state"] == "reserved"
    assert holder == {"gang": "flights / run / train", "replica": 0, "state": "reserved", "share_percent": 100}
    assert "flights / run / train[0]" in airflow_tf("devices")[1]


@pytest.mark.parametrize(
    ("total", "free", "drawn"),
    [
        (None, None, ""),
        (16 * 2**30, None, "16.0 GiB"),
        (16 * 2**30, 16 * 2**30, "░░░░░░░░░░ 0 B of 16.0 GiB"),
        (16 * 2**30, 16 * 2**30 - 1, "█░░░░░░░░░ 1 B of 16.0 GiB"),
        (16 * 2**30, 8 * 2**30, "█████░░░░░ 8.0 GiB of 16.0 GiB"),
        (16 * 2**30, 0, "██████████ 16.0 GiB of 16.0 GiB"),
        (2**30, 2**31, "░░░░░░░░░░ 0 B of 1.0 GiB"),
    ],
)
def test_memory_is_drawn_as_a_bar(total, free, drawn):
    assert memory_bar(total, free) == drawn


@pytest.mark.parametrize("is_terminal", [False, True])
def test_watching_shows_every_look_until_it_is_interrupted(airflow_tf, is_terminal):
    _, rows = airflow_tf("devices", "--output", "json")
    looks = iter([[row | {"name": f"look {number}"} for row in rows] for number in (1, 2)])
    screen = AirflowConsole(file=io.StringIO(), force_terminal=is_terminal)
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    watch(lambda: next(looks), 5.0, screen, sleep)
    assert slept == [5.0, 5.0]
    shown = screen.file.getvalue()
    assert 0 <= shown.index("look 1") < shown.index("look 2")


def test_only_a_table_is_watched(airflow_tf):
    code, said = airflow_tf("devices", "--watch", "--output", "json")
    assert (code, said) == (1, "airflow tf devices: --watch shows a table. Leave --output away.")
