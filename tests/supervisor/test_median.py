"""Trials that are stopped early by the median rule, as scripts without TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_tf.core.launch import METRICS_FILE
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.core.sweep import MedianRule
from airflow_tf.supervisor.median import LOOK_SECONDS, CurveReader
from tests.supervisor.harness import Gang, write_checkpoint

REPORT = """
import json, os, time
def report(step, loss):
    with open(os.environ["AIRFLOW_TF_METRICS_FILE"], "a") as file:
        file.write(json.dumps({"step": step, "loss": loss}) + "\\n")
"""
ENDS = REPORT + "for step in range(1, 4): report(step, 1.0)\n"
HOPELESS = REPORT + "report(1, 1.0)\nreport(2, 9.0)\ntime.sleep(300)\n"
RULE = {"metric": "loss", "mode": "min", "min_steps": 2, "min_trials": 2}


def attempt_of(folder: Path, replica: int, text: str, *, generation: int = 1, attempt: int = 1) -> Path:
    found = folder / f"replica-{replica}" / f"generation-{generation}" / f"attempt-{attempt}"
    found.mkdir(parents=True, exist_ok=True)
    with (found / METRICS_FILE).open("a") as file:
        file.write(text)
    return found


class Looks:
    """Looks at trials, each as if it were time for the next one."""

    def __init__(self, folder: Path) -> None:
        self._now = 0.0
        self.reader = CurveReader("loss", folder, lambda: self._now)

    def __call__(self, attempt: Path, *, passed: float = LOOK_SECONDS, fresh: bool = False) -> str:
        self._now += passed
        return self.reader.judge(MedianRule("loss", min_trials=1), attempt, fresh=fresh)


def test_a_curve_is_read_on_as_it_grows(tmp_path: Path) -> None:
    look = Looks(tmp_path)
    attempt_of(tmp_path, 1, "".join(f'{{"step": {step}, "loss": {-step}}}\n' for step in range(9)))
    own = attempt_of(tmp_path, 0, '{"step": 1, "loss": -4.0}\n{"step": 2, "lo')
    assert look(own) == ""
    attempt_of(tmp_path, 0, 'ss": 3.0}\n{"loss": 1.0}\n[]\n{"step": 4, "loss": null}\n')
    assert look(own, passed=LOOK_SECONDS / 2) == "", "it is not yet time to read again"
    assert "at step 2 its loss 3 is worse than -2" in look(own)
    attempt_of(tmp_path, 0, '{"step": 5, "loss": NaN}\n')
    assert "at step 5 its loss nan is worse than -5" in look(own)


def test_a_trial_is_not_judged_by_what_an_attempt_before_has_reported(tmp_path: Path) -> None:
    look = Looks(tmp_path)
    attempt_of(tmp_path, 1, "".join(f'{{"step": {step}, "loss": 1.0}}\n' for step in range(9)))
    bad = '{"step": 2, "loss": 0.5}\n{"step": 6, "loss": 7.0}\n'
    assert "at step 6 its loss 7" in look(attempt_of(tmp_path, 0, bad))
    again = attempt_of(tmp_path, 0, "", attempt=2)
    assert look(again) == "", "it has not reported yet"
    attempt_of(tmp_path, 0, '{"step": 3, "loss": 0.9}\n', attempt=2)
    assert look(again) == "", "step 6 was made by an attempt that is dead"
    attempt_of(tmp_path, 0, '{"step": 4, "loss": 8.0}\n', attempt=2)
    assert "at step 4 its loss 8" in look(again)


@pytest.mark.parametrize(("fresh", "median"), [(False, "0.5"), (True, "3")])
def test_what_others_had_is_what_their_last_attempt_goes_on_from(tmp_path: Path, fresh: bool, median: str) -> None:
    look = Looks(tmp_path)
    attempt_of(tmp_path, 1, '{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 9.0}\n')
    attempt_of(tmp_path, 1, '{"step": 2, "loss": 3.0}\n', attempt=2)
    own = attempt_of(tmp_path, 0, '{"step": 1, "loss": 8.0}\n')
    assert f"at step 1 its loss 8 is worse than {median}," in look(own, fresh=fresh)


def test_a_trial_is_compared_with_the_newest_generation_of_the_others(tmp_path: Path) -> None:
    look = Looks(tmp_path)
    own = attempt_of(tmp_path, 0, '{"step": 1, "loss": 5.0}\n')
    (tmp_path / "replica-2").mkdir()  # it has not begun
    assert look(own) == ""
    attempt_of(tmp_path, 1, '{"step": 1, "loss": 1.0}\n', generation=9)
    attempt_of(tmp_path, 1, '{"step": 1, "loss": 9.0}\n', generation=10)
    assert look(own) == ""
    attempt_of(tmp_path, 1, '{"step": 1, "loss": 2.0}\n', generation=11)
    assert "its loss 5 is worse than 2" in look(own)


def test_what_cannot_be_read_of_a_trial_ends_none(tmp_path: Path) -> None:
    look = Looks(tmp_path)
    own = attempt_of(tmp_path, 0, '{"step": 1, "loss": 5.0}\n')
    (attempt_of(tmp_path, 1, "").parent / "attempt-x").mkdir()
    broken = attempt_of(tmp_path, 2, "") / METRICS_FILE
    broken.unlink()
    broken.mkdir()
    assert look(own) == ""
    attempt_of(tmp_path, 3, '{"step": 1, "loss": 2.0}\n')
    assert "its loss 5 is worse than 2, the median of 1 other" in look(own)


@pytest.mark.usefixtures("no_processes_left")
def test_a_trial_that_is_worse_than_the_others_is_stopped_and_succeeds(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(count=3)
    for number in range(2):
        assert gang.start(ENDS, replica=number, early_stop=RULE).end().state is AttemptState.SUCCEEDED
    saved = gang.folder / "replica-2" / "generation-1" / "checkpoints"
    saved.mkdir(parents=True)
    write_checkpoint(saved / "ckpt-1")
    watch = gang.start(HOPELESS, replica=2, early_stop=RULE, restarts=3)
    outcome = watch.end()
    why = "stopped early: at step 2 its loss 9 is worse than 1, the median of 2 other trials"
    assert (outcome.state, outcome.cause, outcome.message) == (
        AttemptState.SUCCEEDED,
        ExitCause.STOPPED_EARLY,
        why,
    )
    assert (outcome.metrics, outcome.checkpoint) == ({"step": 2, "loss": 9.0}, str(saved / "ckpt-1"))
    assert why in watch.infos
    record = gang.ledger.replicas(gang.key)[2]
    assert (record.attempts, record.outcome) == (1, outcome)
