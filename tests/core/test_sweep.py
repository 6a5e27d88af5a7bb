from __future__ import annotations

import math

import pytest

from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.sweep import (
    MAX_POINTS,
    Curve,
    MedianRule,
    Trial,
    best_trial,
    expand_grid,
    ranked_trials,
    trial_name,
    worse_than_median,
)


def line(last: int, value: float) -> dict[int, float]:
    """Return a curve with one value at the steps 1 to ``last``."""
    return dict.fromkeys(range(1, last + 1), value)


@pytest.mark.parametrize(
    ("grid", "trials"),
    [
        ({"lr": [0.1, 0.01]}, [{"lr": 0.1}, {"lr": 0.01}]),
        (
            {"lr": [0.1, 0.01], "batch": [32, 64]},
            [
                {"lr": 0.1, "batch": 32},
                {"lr": 0.1, "batch": 64},
                {"lr": 0.01, "batch": 32},
                {"lr": 0.01, "batch": 64},
            ],
        ),
        ({"lr": [0.1], "batch": []}, []),
    ],
)
def test_a_grid_is_the_product_of_its_values_in_the_order_of_the_keys(grid, trials) -> None:
    assert expand_grid(grid) == trials


def test_a_trial_is_named_by_its_arguments_within_what_airflow_keeps() -> None:
    assert trial_name({"lr": 0.1, "batch": 32}) == "lr=0.1 batch=32"
    assert len(trial_name({"layers": "x" * 500})) == 200


@pytest.mark.parametrize(
    ("rule", "own", "others", "stops"),
    [
        # worse than the median of three others at the same step
        (MedianRule("loss"), line(5, 9.0), [line(5, 1.0), line(5, 2.0), line(5, 10.0)], True),
        (MedianRule("loss"), line(5, 2.0), [line(5, 1.0), line(5, 2.0), line(5, 10.0)], False),
        (MedianRule("loss"), line(5, 1.5), [line(5, 1.0), line(5, 2.0), line(5, 10.0)], False),
        # more is better
        (MedianRule("auc", "max"), line(5, 0.5), [line(5, 0.7), line(5, 0.8), line(5, 0.1)], True),
        (MedianRule("auc", "max"), line(5, 0.75), [line(5, 0.7), line(5, 0.8), line(5, 0.1)], False),
        # not before the first step that counts, nor with too few others
        (MedianRule("loss", min_steps=6), line(5, 9.0), [line(9, 1.0)] * 3, False),
        (MedianRule("loss", min_steps=5), line(5, 9.0), [line(9, 1.0)] * 3, True),
        (MedianRule("loss", min_trials=3), line(5, 9.0), [line(9, 1.0)] * 2, False),
        (MedianRule("loss", min_trials=2), line(5, 9.0), [line(9, 1.0)] * 2, True),
        (MedianRule("loss", min_trials=0), line(5, 9.0), [], False),
        # others count only as far as they have come, with the value that they had then
        (MedianRule("loss", min_trials=1), line(5, 9.0), [line(4, 1.0)], False),
        (MedianRule("loss", min_trials=1), line(5, 3.0), [{5: 4.0, 9: 0.1}], False),
        (MedianRule("loss", min_trials=1), line(5, 3.0), [{2: 2.0, 4: 1.0, 9: 10.0}], True),
        (MedianRule("loss", min_trials=1), line(5, 3.0), [{8: 1.0}], True),
        # what is no number is worse than any
        (MedianRule("loss", min_trials=1), {3: math.nan}, [line(3, 1e9)], True),
        (MedianRule("auc", "max", min_trials=1), {3: math.nan}, [line(3, -1e9)], True),
        (MedianRule("loss", min_trials=1), line(3, 1e9), [{3: math.nan}], False),
        (MedianRule("loss", min_trials=1), {3: math.nan}, [{3: math.nan}], False),
        (MedianRule("loss"), {}, [line(5, 1.0)] * 3, False),
    ],
)
def test_the_median_rule(rule, own, others, stops) -> None:
    assert bool(worse_than_median(rule, Curve(own.items()), [Curve(curve.items()) for curve in others])) is stops


@pytest.mark.parametrize(
    ("mode", "own", "value"), [("min", 9.0, "worse than 2, the median"), ("max", 0.5, "worse than 2, the median")]
)
def test_the_reason_names_step_value_and_median(mode, own, value) -> None:
    others = [Curve(line(5, v).items()) for v in (1.0, 2.0, 10.0)]
    why = worse_than_median(MedianRule("loss", mode), Curve(line(5, own).items()), others)
    assert why.startswith(f"at step 5 its loss {own:g} is ")
    assert value in why
    assert why.endswith("of 3 other trials")


@pytest.mark.parametrize(
    ("trials", "mode", "order"),
    [
        ([Trial(0, 2.0), Trial(1, 1.0), Trial(2, 3.0)], "min", [1, 0, 2]),
        ([Trial(0, 2.0), Trial(1, 1.0), Trial(2, 3.0)], "max", [2, 0, 1]),
        ([Trial(1, 1.0), Trial(0, 1.0)], "min", [0, 1]),
        ([Trial(0, 0.1, "at step 1 …"), Trial(1, 1.0)], "min", [1, 0]),
        ([Trial(0, None), Trial(1, 0.1, "at step 1 …")], "min", [1, 0]),
        ([Trial(0, math.nan), Trial(1, 1e9)], "max", [1, 0]),
    ],
)
def test_trials_are_ranked_by_their_last_value_those_stopped_early_after_the_others(trials, mode, order) -> None:
    assert [trial.number for trial in ranked_trials(trials, mode)] == order
    assert best_trial(trials, "loss", mode).number == order[0]


@pytest.mark.parametrize("trials", [[], [Trial(0, None)]])
def test_there_is_no_best_trial_without_the_metric(trials) -> None:
    with pytest.raises(CheckpointError, match="no trial has reported 'loss'"):
        best_trial(trials, "loss", "min")


def test_of_a_long_curve_few_points_are_kept_none_of_them_before_its_time() -> None:
    curve = Curve()
    for step in range(1, 20 * MAX_POINTS + 1):
        curve.add(step, float(step))
        assert curve.last == (step, float(step))
    assert MAX_POINTS / 4 < len(curve) <= MAX_POINTS
    assert curve.value_at(1) == 1.0
    for step in range(1, 20 * MAX_POINTS, 777):
        assert step - 64 < curve.value_at(step) <= step


def test_of_a_step_that_is_reported_again_the_last_value_counts_in_any_order_of_steps() -> None:
    curve = Curve([(3, 3.0), (1, 1.0), (3, 4.0), (2, 2.0)])
    assert curve.points == [(1, 1.0), (2, 2.0), (3, 4.0)]
    curve.drop_from(2)
    assert curve.points == [(1, 1.0)]
    curve.drop_from(0)
    assert curve.last is None
