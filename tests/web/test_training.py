"""What the pages learn from run folders: curves by cursor, rates, the slowest replica, reports of the newest attempt."""

from __future__ import annotations

import json
import os

import pytest

from airflow_tf.ledger.read import ReplicaRow, RunRow
from airflow_tf.web.curves import READ_BYTES, Cursor, read_curve, step_rate
from airflow_tf.web.training import details, placement, slowest_of


def report(folder, attempt, *rows):
    path = folder / f"attempt-{attempt}"
    path.mkdir(parents=True, exist_ok=True)
    with (path / "metrics.jsonl").open("a") as file:
        file.writelines(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    return path


def test_a_curve_goes_on_where_the_page_has_it(tmp_path):
    report(tmp_path, 1, {"step": 1, "loss": 3.0}, "no metrics", {"step": 2, "loss": float("nan"), "mae": 1})
    first = read_curve(tmp_path, 0, 1, Cursor.parse(""))
    assert (first.is_new, first.points) == (True, {"loss": [(1, 3.0)], "mae": [(2, 1)]})
    report(tmp_path, 1, {"step": 3, "loss": 2.0})
    second = read_curve(tmp_path, 0, 1, Cursor.parse(first.cursor))
    assert (second.is_new, second.points) == (False, {"loss": [(3, 2.0)]})
    report(tmp_path, 2, {"step": 3, "loss": 1.5})
    third = read_curve(tmp_path, 0, 1, Cursor.parse(second.cursor))
    assert third.points == {"loss": [(3, 1.5)]}
    assert read_curve(tmp_path, 0, 1, Cursor.parse(third.cursor)).points == {}
    assert read_curve(tmp_path, 0, 2, Cursor.parse(third.cursor)).is_new


def test_a_line_that_is_still_written_is_read_when_it_is_whole(tmp_path):
    path = report(tmp_path, 1, {"step": 1, "loss": 3.0}) / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    first = read_curve(tmp_path, 0, 1, Cursor())
    with path.open("a") as file:
        file.write('ss": 2.0}\n')
    assert read_curve(tmp_path, 0, 1, Cursor.parse(first.cursor)).points == {"loss": [(2, 2.0)]}


def test_a_long_file_is_seen_whole_at_once_by_parts_of_it(tmp_path):
    count = 4 * READ_BYTES // 30
    report(tmp_path, 1, *({"step": step, "loss": 1.0 + step} for step in range(count)))
    found = read_curve(tmp_path, 0, 1, Cursor())
    steps = [step for step, _ in found.points["loss"]]
    assert (steps[0], steps[-1], found.has_more) == (0, count - 1, False)
    assert len(steps) < count / 2
    assert steps == sorted(set(steps))


@pytest.mark.parametrize(
    "line",
    [f'{{"step": 2, "loss": 1{"0" * 400}}}', f'{{"step": 1{"0" * 400}}}', "[" * 10_000, '{"step": 1' + "0" * 5000],
)
def test_a_line_that_no_number_can_hold_is_passed_over(tmp_path, line):
    path = report(tmp_path, 1, {"step": 1, "time": 10.0, "loss": 3.0}, line, {"step": 3, "time": 11.0, "loss": 2.0})
    (path / "launch.json").write_text("{}")
    found = read_curve(tmp_path, 0, 1, Cursor())
    assert found.points == {"loss": [(1, 3.0), (3, 2.0)]}
    assert read_curve(tmp_path, 0, 1, Cursor.parse(found.cursor)).points == {}
    assert step_rate(path) == 2.0


def test_a_rate_that_no_number_can_hold_is_unknown(tmp_path):
    path = report(tmp_path, 1, {"step": -(10**308), "time": 10.0}, {"step": 10**308, "time": 11.0})
    (path / "launch.json").write_text("{}")
    assert step_rate(path) is None


@pytest.mark.parametrize("text", ["1.2", "a.b.c", "1.2.-3", "1.2.3.4", "1.2." + "9" * 40])
def test_what_is_no_cursor_is_the_beginning(text):
    assert Cursor.parse(text) == Cursor()


def test_a_rate_is_that_of_the_last_lines_or_the_mean_since_the_start(tmp_path):
    timed = report(tmp_path, 1, {"step": 0, "time": 100.0}, {"step": 50, "time": 110.0})
    (timed / "launch.json").write_text("{}")
    assert step_rate(timed) == 5.0
    plain = report(tmp_path, 2, {"step": 10}, {"step": 40})
    (plain / "launch.json").write_text("{}")
    os.utime(plain / "launch.json", (1000, 1000))
    os.utime(plain / "metrics.jsonl", (1010, 1010))
    assert step_rate(plain) == 3.0
    assert step_rate(tmp_path / "attempt-3") is None


@pytest.mark.parametrize(
    ("rates", "slowest"), [({}, None), ({0: 1.0}, None), ({0: 1.0, 1: 1.0}, None), ({0: 2.0, 1: 1.0, 2: None}, 1)]
)
def test_the_slowest_is_named_where_there_is_somebody_to_compare_with(rates, slowest):
    assert slowest_of(rates) == slowest


def test_reports_are_those_of_the_newest_attempt_that_wrote_one(tmp_path):
    run = RunRow("k", "l", "d", "r", "t", 1, str(tmp_path), "now", 1, None, None, (ReplicaRow(0, (), 1),))
    home = tmp_path / "replica-0" / "generation-1"
    for attempt, text in ((1, '{"asked": {"a": 1}, "applied": {"a": "b"}}'), (2, '{"asked"')):
        (home / f"attempt-{attempt}").mkdir(parents=True)
        (home / f"attempt-{attempt}" / "session_config.json").write_text(text)
    found = details(run, tmp_path, 0)
    assert found is not None
    assert found.session_config == {"asked": {"a": 1}, "applied": {"a": "b"}}
    assert (found.placement, found.checkpoints) == ({}, [])
    assert details(run, tmp_path, 7) is None


def test_a_placement_report_is_that_of_the_newest_attempt_that_has_one(tmp_path):
    run = RunRow("k", "l", "d", "r", "t", 1, str(tmp_path), "now", 1, None, None, (ReplicaRow(0, (), 1),))
    for attempt in (1, 2):
        (tmp_path / "replica-0" / "generation-1" / f"attempt-{attempt}").mkdir(parents=True)
    assert placement(run, tmp_path, 0) == {}
    (tmp_path / "replica-0" / "generation-1" / "attempt-1" / "placement.json").write_text('{"counts": {"CPU:0": 3}}')
    assert placement(run, tmp_path, 0) == {"counts": {"CPU:0": 3}}
    assert placement(run, tmp_path, 7) == {}
