"""What is read back from an attempt's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_tf.core.launch import EVALUATION_FILE, METRICS_FILE
from airflow_tf.supervisor.results import earlier_attempts, last_step, read_metrics


@pytest.mark.parametrize(
    ("lines", "metrics"),
    [
        (['{"step": 1, "loss": 2.0}', '{"step": 2, "loss": 1.0}'], {"step": 2, "loss": 1.0}),
        # the last value counts, also when it is no number: a trial that has diverged has none
        (['{"step": 1, "loss": 0.1, "mae": 3}', '{"step": 2, "loss": NaN}'], {"step": 2, "mae": 3}),
        (['{"step": 1, "loss": 0.1}', '{"step": 2, "loss": -Infinity}', '{"step": 3}'], {"step": 3}),
        (['{"step": 1, "loss": NaN}', '{"step": 2, "loss": 0.5}'], {"step": 2, "loss": 0.5}),
        # a step that is none takes none away
        (['{"step": 1, "loss": 0.1}', '{"step": NaN, "loss": 0.2}'], {"step": 1, "loss": 0.2}),
        # what is no metric is passed over
        (['{"step": 1, "time": 5.0, "name": "a"}', "[]", "no json", '{"loss": 1.0'], {"step": 1}),
        ([f'{{"step": 1, "big": 1{"0" * 400}}}'], {"step": 1}),
        (['{"step": 1}', "[" * 100_000], {"step": 1}),
    ],
)
def test_the_last_value_of_each_metric_counts(tmp_path: Path, lines: list[str], metrics: dict[str, Any]) -> None:
    (tmp_path / METRICS_FILE).write_text("\n".join(lines))
    assert read_metrics(tmp_path) == metrics


def test_metrics_are_laid_over_those_of_the_attempts_before(tmp_path: Path) -> None:
    for name, text in {
        "attempt-2": '{"step": 1, "loss": 2.0, "mae": 3.0}\n{"step": 2, "loss": 1.0',
        "attempt-9": '{"step": 3, "auc": 0.5}\n',
        "attempt-10": '{"step": 2, "mae": NaN}\n',
        "attempt-11": '{"step": 100}\n',
        "attempt-x": '{"step": 200}\n',
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / METRICS_FILE).write_text(text)
    earlier = earlier_attempts(tmp_path / "attempt-10")
    assert [path.name for path in earlier] == ["attempt-2", "attempt-9"]
    assert read_metrics(tmp_path / "attempt-10", earlier=earlier) == {"step": 2, "loss": 2.0, "auc": 0.5}


def test_an_evaluation_is_found_beside_what_was_reported(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == {}
    (tmp_path / EVALUATION_FILE).write_text(json.dumps({"mae": 1.0}))
    (tmp_path / METRICS_FILE).write_text('{"evaluation": NaN}\n')
    assert read_metrics(tmp_path) == {"evaluation": {"mae": 1.0}}


def test_the_last_step_is_the_last_finite_one(tmp_path: Path) -> None:
    (tmp_path / METRICS_FILE).write_text('{"step": 7}\n{"step": NaN}\n{"loss": 1.0}\n')
    assert last_step(tmp_path) == 7
