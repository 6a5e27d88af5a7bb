"""What each method makes of the replicas' checkpoints."""

from __future__ import annotations

import datetime as dt
import json
import types

import numpy as np
import pytest

from airflow_tf.core.checkpoint import BundleReader, BundleWriter, Entry
from airflow_tf.core.errors import CheckpointError, DeclarationError
from airflow_tf.operators.aggregation import Aggregation, Choices, same_start
from airflow_tf.operators.candidates import version_name
from airflow_tf.operators.checkpoint import CheckpointAggregateOperator
from airflow_tf.operators.local_program import LocalProgram
from airflow_tf.operators.soup import LocalEvaluation

METRICS = {
    "replica-0": {"mae": 3.0, "samples": 1},
    "replica-1": {"mae": 1.0, "samples": 3},
    "replica-2": {"mae": 2.0, "samples": 4},
}


@pytest.fixture
def write(tmp_path):
    def call(replica, step, value):
        prefix = str(tmp_path / f"replica-{replica}" / f"ckpt-{step}")
        with BundleWriter(prefix) as writer:
            writer.add(b"w", Entry(1, (1,), 0, 0, 0, 0), [np.float32([value]).tobytes()])
            writer.commit()
        return prefix

    return call


@pytest.fixture
def found(write):
    return {f"replica-{n}": write(n, step, value) for n, (step, value) in enumerate([(5, 1), (20, 2), (10, 6)])}


def aggregate(tmp_path, found, evaluate=None, **choices):
    folder = tmp_path / "aggregate"
    folder.mkdir(exist_ok=True)
    aggregation = Aggregation(Choices(**choices), folder, evaluate)
    candidates, chosen = aggregation.run(found, METRICS)
    return candidates, chosen, aggregation.reports


def value(prefix):
    with BundleReader(prefix) as reader:
        return float(np.frombuffer(reader.read(b"w"), "f4")[0])


@pytest.mark.parametrize(
    ("choices", "chosen", "expected"),
    [
        ({"method": "average"}, "average", 3.0),
        ({"method": "average", "weights": "samples"}, "average", (1 + 6 + 24) / 8),
        ({"method": "latest"}, "replica-1", 2.0),
        ({"method": "best", "metric": "mae"}, "replica-1", 2.0),
        ({"method": "best", "metric": "mae", "mode": "max"}, "replica-0", 1.0),
        ({"method": "top_k", "metric": "mae", "top": 2}, "top_k", 4.0),
        ({"method": "top_k", "metric": "mae", "top": 2, "weights": "samples"}, "top_k", (6 + 24) / 7),
        ({"method": "top_k", "metric": "mae", "top": 1}, "replica-1", 2.0),
    ],
)
def test_each_method_chooses_or_makes_one(tmp_path, found, choices, chosen, expected):
    candidates, name, _ = aggregate(tmp_path, found, **choices)
    assert name == chosen
    assert value(candidates[name]) == pytest.approx(expected)
    assert found.items() <= candidates.items()


def test_best_without_a_metric_is_left_to_the_evaluation(tmp_path, found):
    assert aggregate(tmp_path, found, method="best")[:2] == (found, None)


def test_a_single_candidate_is_chosen_whatever_the_method(tmp_path, found):
    one = {"replica-0": found["replica-0"]}
    for method in ("average", "best", "latest", "greedy_soup", "chief"):
        assert aggregate(tmp_path, one, method=method)[:2] == (one, "replica-0")


def test_more_than_there_are_are_not_silently_averaged_as_fewer(tmp_path, found):
    with pytest.raises(CheckpointError, match="the best 4 of 3 checkpoints cannot be averaged"):
        aggregate(tmp_path, found, method="top_k", metric="mae", top=4)
    with pytest.raises(CheckpointError, match="replica-0 has 1 whole checkpoints, and ema is over 2"):
        aggregate(tmp_path, found, method="ema", last=2)


def test_a_moving_average_over_each_replicas_last_checkpoints(tmp_path, write):
    for step, number in ((1, 100), (2, 1), (10, 2)):
        prefix = write(0, step, number)
    write(0, 11, 1000)  # younger than the result: not of this attempt
    candidates, chosen, _ = aggregate(tmp_path, {"replica-0": prefix}, method="ema", last=2, decay=0.5)
    assert (chosen, value(candidates[chosen])) == ("replica-0-ema", 1.5)


def test_a_greedy_soup_asks_for_every_trial_and_keeps_what_improves(tmp_path, found):
    asked = []

    def evaluate(candidates):
        asked.append(sorted(candidates))
        return {name: {"mae": abs(value(prefix) - 4.0)} for name, prefix in candidates.items()}

    candidates, chosen, _ = aggregate(tmp_path, found, evaluate, method="greedy_soup", metric="mae")
    assert (chosen, value(candidates[chosen])) == ("greedy_soup", 4.0)  # of 2 and 6; 1 makes it worse
    assert asked == [["replica-0", "replica-1", "replica-2"], ["trial"], ["trial"]]
    soup = json.loads((tmp_path / "aggregate" / "soup.json").read_text())
    assert soup["members"] == ["replica-1", "replica-2"]
    with pytest.raises(CheckpointError, match="needs an evaluation"):
        aggregate(tmp_path, found, method="greedy_soup")


def test_a_report_that_cannot_be_written_is_told_in_words(tmp_path, found):
    report = tmp_path / "aggregate" / "average.report.json"
    report.mkdir(parents=True)
    with pytest.raises(CheckpointError) as caught:
        aggregate(tmp_path, found)
    assert str(caught.value) == f"{report} cannot be written: Is a directory. Make room."


def test_what_is_left_out_is_reported(tmp_path, found, write):
    found = found | {"replica-3": write(3, 1, np.nan)}
    _, chosen, reports = aggregate(tmp_path, found, not_finite="leave_out")
    assert reports[chosen]["left_out"] == {found["replica-3"]: "'w' has NaN or infinite values"}


def test_whether_replicas_began_alike_is_told_by_their_checkpoints_of_step_0(found, write):
    prefixes = list(found.values())
    assert same_start(prefixes) is None
    for replica in range(3):
        write(replica, 0, 7)
    assert same_start(prefixes) is True
    write(2, 0, 8)
    assert same_start(prefixes) is False


PROGRAM = """
import json, os, sys
assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"
assert sys.argv[1:] == ["--rows=3"], sys.argv
assert os.environ["AIRFLOW_TF_INPUT_HOLDOUT"] == "/data"
candidates = json.loads(os.environ["AIRFLOW_TF_CANDIDATES"])
rows = {name: {"mae": float(len(prefix))} for name, prefix in candidates.items()}
with open(os.environ["AIRFLOW_TF_EVALUATION_FILE"], "w") as file:
    json.dump({"candidates": rows}, file)
"""


def evaluation(tmp_path, program, **changes):
    (tmp_path / "evaluate.py").write_text(program)
    options = {"entrypoint": "evaluate.py", "arguments": {"rows": 3}, "inputs": {"holdout": "/data"}} | changes
    return LocalEvaluation(LocalProgram("evaluation", dag_folder=tmp_path, **options), tmp_path / "evaluations")


def test_the_evaluation_program_runs_as_in_a_task_of_its_own(tmp_path):
    ask = evaluation(tmp_path, PROGRAM)
    assert ask({"a": "xx", "b": "xxx"}) == {"a": {"mae": 2.0}, "b": {"mae": 3.0}}
    assert ask({"trial": "x"}) == {"trial": {"mae": 1.0}}
    assert sorted(path.name for path in (tmp_path / "evaluations").iterdir()) == ["0", "1"]


@pytest.mark.parametrize(
    ("program", "changes", "message"),
    [
        ("raise ValueError('no such rows')", {}, r"ended with code 1: its output ends:[\s\S]*no such rows"),
        ("pass", {}, "wrote no readable result"),
        ("import time; time.sleep(300)", {"timeout_seconds": 1.0}, r"took longer than 1 s"),
    ],
)
def test_a_program_that_gives_no_result_fails_the_aggregation(tmp_path, program, changes, message):
    with pytest.raises(CheckpointError, match=message):
        evaluation(tmp_path, program, **changes)({"a": "x"})


def test_a_missing_program_is_refused(tmp_path):
    with pytest.raises(DeclarationError, match=r"'other\.py' does not exist"):
        evaluation(tmp_path, "", entrypoint="other.py")({"a": "x"})


@pytest.mark.parametrize(
    ("method", "strategy", "fits"),
    [
        ("chief", "sync", True),
        ("ema", "sync", True),
        ("ema", "independent", True),
        ("average", "sync", False),
        ("greedy_soup", "async", False),
        ("chief", "independent", False),
        ("median", "independent", False),
    ],
)
def test_a_gang_has_one_model_only(method, strategy, fits):
    operator = CheckpointAggregateOperator(task_id="aggregate", method=method)
    if fits:
        operator._check_method(strategy)
    else:
        with pytest.raises(DeclarationError, match=method):
            operator._check_method(strategy)


@pytest.mark.parametrize(
    ("second", "same"),
    [
        ("same start", None),  # it may be, which is no proof
        ("other start", False),
        ("other start, small", None),
        ("zeros", None),
        ("not finite", None),
    ],
)
def test_without_step_0_replicas_that_are_as_unlike_as_random_ones_did_not_begin_alike(tmp_path, second, same):
    draw = np.random.default_rng(1)
    size = 100 if "small" in second else 5000
    first, other = draw.normal(size=size), draw.normal(size=size)
    trained = {
        "same start": first + 0.5 * other,
        "zeros": np.zeros(size),
        "not finite": np.full(size, np.nan),
    }.get(second, other)
    prefixes = []
    for replica, kernel in enumerate((first, trained)):
        prefixes.append(str(tmp_path / f"replica-{replica}" / "ckpt-9"))
        with BundleWriter(prefixes[-1]) as writer:
            writer.add(b"bias", Entry(1, (3,), 0, 0, 0, 0), [np.float32([1, 2, 3]).tobytes()])
            writer.add(b"kernel", Entry(1, (size,), 0, 0, 0, 0), [kernel.astype("<f4").tobytes()])
            writer.add(b"kernel/Adam_1", Entry(1, (size,), 0, 0, 0, 0), [np.ones(size, "<f4").tobytes()])
            writer.commit()
    assert same_start(prefixes) is same


@pytest.mark.parametrize(
    ("destination", "same", "sends"), [(True, None, True), (True, False, False), (False, True, False)]
)
def test_an_average_is_sent_ahead_to_the_version_where_it_will_be_published(tmp_path, destination, same, sends):
    base = f"file://{tmp_path}/models"
    operator = CheckpointAggregateOperator(task_id="aggregate", destination=f"{base}/" if destination else None)
    run = types.SimpleNamespace(dag_id="dag", run_id="run")
    after = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    context = {"dag_run": types.SimpleNamespace(run_after=after)}
    with operator._sending(context, run, 3, same) as sending:
        assert (sending is not None) == sends
        if sends:
            assert (sending.uri, sending.fence) == (f"{base}/{version_name(after, run)}", 3)
