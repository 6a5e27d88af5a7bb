"""Retention: what is old goes, what is in use stays, and a crash in the middle is finished by the next call."""

from __future__ import annotations

import fcntl
import os
import time

import pytest

from airflow_tf.cli.prune import Pruner
from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.identity import GangKey, RunFolders
from airflow_tf.devices.registry import read_all
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.supervisor.acquire import this_host
from airflow_tf.supervisor.protocol import LOCK_NAME

DAY_SECONDS = 86400.0


@pytest.fixture
def make_run(installation, ledger):
    """Leave the files of a run whose last write was ``days`` ago; return the folder of its gang."""

    def make(dag_id, days=40.0):
        key = GangKey(ledger.ledger_id, dag_id, "run", "train")
        gang = RunFolders(installation.home, dag_id, "run").gang(key)
        attempt = gang / "replica-0" / "generation-1" / "attempt-1"
        attempt.mkdir(parents=True)
        (gang / LOCK_NAME).touch()
        (attempt / "output.log").write_text("x" * 5000)
        age(gang.parent, days)
        return gang

    return make


def age(folder, days):
    then = time.time() - days * DAY_SECONDS
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (then, then))


@pytest.fixture
def runs(installation):
    return lambda: sorted(path.name.partition("--")[0] for path in (installation.home / "runs").iterdir())


@pytest.fixture
def prune(ledger, installation):
    return Pruner(ledger, installation, 30 * DAY_SECONDS).prune


def test_old_runs_go_and_younger_ones_stay(airflow_tf, make_run, runs):
    make_run("old")
    make_run("young", days=29)
    code, rows = airflow_tf("prune", "--yes", "--output", "json")
    assert code == 0
    [row] = [row for row in rows if row["what"] == "run folder"]
    assert row["name"].startswith("old--run--")
    assert (row["result"], row["reason"], row["bytes"] >= 5000) == ("removed", "", True)
    assert runs() == ["young"]


def test_a_run_is_as_young_as_the_youngest_thing_in_it(make_run, runs, prune):
    gang = make_run("old")
    os.utime(gang / "replica-0" / "generation-1" / "attempt-1" / "output.log")
    prune()
    assert runs() == ["old"]


def test_the_use_of_a_cached_input_by_others_does_not_keep_a_run(make_run, installation, runs, prune):
    gang = make_run("old")
    cached = installation.home / "cached.csv"
    cached.write_text("1,2\n")
    inputs = gang.parent / "inputs"
    inputs.mkdir()
    (inputs / "data.csv").hardlink_to(cached)
    age(gang.parent, 40)
    os.utime(cached)
    prune()
    assert runs() == []
    assert cached.read_text() == "1,2\n"


def test_a_dry_run_removes_nothing(airflow_tf, make_run, runs):
    make_run("old")
    _, rows = airflow_tf("prune", "--dry-run", "--output", "json")
    assert "would be removed" in [row["result"] for row in rows]
    assert runs() == ["old"]


def test_the_limit_can_be_given(airflow_tf, make_run, runs):
    make_run("old", days=3)
    airflow_tf("prune", "--older-than", "2d", "--yes")
    assert runs() == []


def test_the_limit_is_an_option(airflow_tf, make_run, runs, monkeypatch):
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__RETENTION_SECONDS", "60h")
    make_run("old", days=3)
    airflow_tf("prune", "--yes")
    assert runs() == []


@pytest.mark.parametrize("answer", ["n\n", "", None])
def test_without_a_yes_nothing_is_removed(airflow_tf, make_run, runs, monkeypatch, answer):
    def read(_):
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr("builtins.input", read)
    make_run("old")
    assert airflow_tf("prune") == (1, "Nothing was done. Answer y, or give --yes.")
    assert runs() == ["old"]


def test_a_yes_on_the_terminal_is_enough(airflow_tf, make_run, runs, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda _: "Y")
    make_run("old")
    assert airflow_tf("prune")[0] == 0
    assert runs() == []


def test_a_run_that_holds_devices_stays(make_run, reserve, runs, prune):
    make_run("old")
    reserve("old")
    [row] = [row for row in prune() if row["what"] == "run folder"]
    assert (row["result"], row["reason"]) == ("kept", "a run in it waits, holds devices or runs")
    assert runs() == ["old"]


def test_a_run_that_waits_for_devices_stays(make_run, reserve, ledger, installation, runs, prune):
    reserve("busy", 2)
    key = GangKey(ledger.ledger_id, "old", "run", "train")
    ledger.reserve(key, DeviceRequest("cpu"), [0], this_host(), read_all(installation, "cpu"))
    make_run("old")
    prune()
    assert runs() == ["old"]
    ledger.withdraw(key)
    prune()
    assert runs() == []


def test_a_run_whose_supervisor_lives_stays(airflow_tf, make_run, runs, prune):
    gang = make_run("old")
    with (gang / LOCK_NAME).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _, [row] = airflow_tf("prune", "--dry-run", "--output", "json")
        assert (row["result"], row["reason"]) == ("kept", "a supervisor runs in it")
        assert prune() == [row]
        assert runs() == ["old"]
    prune()
    assert runs() == []


def test_a_removal_that_was_cut_off_is_finished(make_run, installation, runs, prune, monkeypatch):
    gang = make_run("old")

    def crash(folder):
        if not folder.exists():
            return
        (folder / gang.name / "replica-0" / "generation-1" / "attempt-1" / "output.log").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("airflow_tf.supervisor.retention._remove_tree", crash)
        with pytest.raises(KeyboardInterrupt):
            prune()
    assert [name[:8] for name in runs()] == [".pruned-"]
    make_run("old")  # the same run again, meanwhile
    prune()
    assert runs() == []


def test_what_cannot_be_removed_is_told_and_the_rest_goes(airflow_tf, make_run, runs, monkeypatch):
    from airflow_tf.supervisor import retention

    remove = retention._remove_tree

    def fail(folder):
        if "first" in folder.name:
            raise PermissionError(13, "Permission denied", str(folder))
        remove(folder)

    monkeypatch.setattr("airflow_tf.supervisor.retention._remove_tree", fail)
    make_run("first")
    make_run("second")
    code, rows = airflow_tf("prune", "--yes", "--output", "json")
    assert code == 1
    assert [row["result"] for row in rows if row["what"] == "run folder"] == ["failed", "removed"]


def test_the_rows_of_a_gang_that_has_ended_go_and_those_of_a_live_one_stay(reserve, ledger, installation):
    reserve("ended")
    reserve("live")
    key = GangKey(ledger.ledger_id, "ended", "run", "train")
    ledger.release(ledger.member(key, 0))
    pruner = Pruner(ledger, installation, -DAY_SECONDS)  # as if a day had passed
    (row,) = [row for row in pruner.plan() if row["what"] == "ledger rows"]
    assert (row["name"], row["result"]) == ("ended / run / train", "would be removed")
    pruner.prune()
    assert [run.dag_id for run in LedgerReader(ledger).runs()] == ["live"]


def test_nothing_to_prune(airflow_tf, installation):
    assert airflow_tf("prune", "--yes", "--output", "json") == (0, [])
