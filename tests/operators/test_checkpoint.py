"""Choosing, collecting and describing what is published; refusing what is not whole."""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
from pathlib import Path

import google_crc32c
import pytest

from airflow_tf.core.errors import CheckpointError
from airflow_tf.hooks.airflow_run import TaskRun
from airflow_tf.operators.candidates import choose, collect, describe, version_name
from airflow_tf.operators.evaluate import check_evaluation
from tests.supervisor.harness import write_checkpoint

AVERAGED = {
    "candidates": {"replica-0": "a", "replica-1": "b", "average": "c"},
    "chosen": "average",
    "method": "average",
}


def scores(**values: float) -> dict[str, object]:
    named = {name.replace("_", "-"): {"mae": value} for name, value in values.items()}
    return {"candidates": named, "baselines": {}}


@pytest.mark.parametrize(
    ("evaluation", "mode", "name"),
    [
        (None, "min", "average"),
        (scores(replica_0=3.0, replica_1=2.0, average=1.0), "min", "average"),
        (scores(replica_0=3.0, replica_1=1.0, average=1.0), "min", "average"),
        (scores(replica_0=3.0, replica_1=1.0, average=2.0), "min", "replica-1"),
        (scores(replica_0=3.0, replica_1=1.0, average=2.0), "max", "replica-0"),
    ],
)
def test_the_average_is_published_unless_it_is_worse_than_the_best_replica(
    evaluation: dict[str, object] | None, mode: str, name: str
) -> None:
    assert choose(AVERAGED, evaluation, "mae", mode) == name


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_what_has_no_finite_metric_is_never_chosen_and_named(
    value: float | None, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = {"replica-0": {"mae": 1.0}, "replica-1": {"mae": 1.0}, "average": {"mae": value}}
    with caplog.at_level(logging.WARNING):
        assert choose(AVERAGED, {"candidates": rows}, None, mode) == "replica-0"
    assert caplog.messages == ["average is not chosen: its mae is not finite"]


def test_an_evaluation_in_which_nothing_is_finite_chooses_nothing() -> None:
    with pytest.raises(CheckpointError, match="'mae' is finite for none of replica-0, replica-1, average"):
        choose(AVERAGED, scores(replica_0=math.nan, replica_1=math.inf, average=math.nan), "mae", "min")


def test_an_evaluation_has_none_in_place_of_what_is_not_finite() -> None:
    written = json.loads(
        '{"candidates": {"a": {"x": NaN, "y": -Infinity, "z": null, "n": 1}}, "baselines": {"b": {"x": 1e999}}}'
    )
    written["candidates"]["a"]["large"] = 10**400
    found = check_evaluation(written)
    nothing = {"x": None, "y": None, "z": None, "large": None}
    assert found == {"candidates": {"a": nothing | {"n": 1.0}}, "baselines": {"b": {"x": None}}}


def test_the_only_metric_decides_when_none_is_named() -> None:
    assert choose(AVERAGED, scores(replica_0=1.0, replica_1=2.0, average=3.0), None, "min") == "replica-0"


def test_a_missing_metric_and_an_undecided_choice_are_refused() -> None:
    with pytest.raises(CheckpointError, match="no metric 'loss' for replica-0, replica-1, average"):
        choose(AVERAGED, scores(replica_0=1.0, replica_1=2.0, average=3.0), "loss", "min")
    with pytest.raises(CheckpointError, match="Add an evaluate section"):
        choose({**AVERAGED, "chosen": None, "method": "best"}, None, None, "min")


def test_what_is_published_is_linked_and_described(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "ck-10")
    write_checkpoint(tmp_path / "ck-1")
    folder = collect(str(tmp_path / "ck-1"), tmp_path / "model")
    found = describe(folder)
    assert set(found) == {"checkpoint", "model.index", "model.data-00000-of-00001"}
    data = (tmp_path / "ck-1.index").read_bytes()
    assert found["model.index"] == {"size": len(data), "crc32c": google_crc32c.value(data)}
    with pytest.raises(CheckpointError, match="is gone"):
        collect(str(tmp_path / "ck-2"), tmp_path / "other")


def test_a_version_is_the_same_for_every_try_and_has_no_colon() -> None:
    run = TaskRun("dag", "manual__2026-01-01T00:00:00+00:00", "publish", "ti", 1, 2, 2, 10.0, in_process=False)
    when = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    name = version_name(when, run)
    assert name.startswith("v=20260102T020405Z-")
    assert ":" not in name
    assert name == version_name(when, run)


@pytest.mark.parametrize("data", [None, [], {"candidates": []}, {"candidates": {"average": {"mae": "bad"}}}, {}])
def test_an_evaluation_that_cannot_be_read_says_what_to_write(data: object) -> None:
    with pytest.raises(CheckpointError, match="AIRFLOW_TF_EVALUATION_FILE"):
        check_evaluation(data)
