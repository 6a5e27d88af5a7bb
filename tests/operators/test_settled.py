"""What counts of a training task whose replicas have ended, were marked by a user, or still run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Outcome, ReplicaRecord
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.operators import settled as module
from airflow_tf.operators.settled import replica_checkpoints, settled_records

KEY = GangKey("installation", "dag", "run", "train")
LOG = logging.getLogger("test")
DONE = Outcome(AttemptState.SUCCEEDED, checkpoint="/ck-1")
STOPPED = Outcome(AttemptState.STOPPED, ExitCause.MARKED, "its task was marked success", checkpoint="/ck-7")


def record(outcome: Outcome | None) -> ReplicaRecord:
    return ReplicaRecord(1, 1, 1, outcome, fence=7)


def test_every_replica_must_have_a_durable_success() -> None:
    assert replica_checkpoints(KEY, {0: record(DONE)}, [0], {}, LOG) == {"replica-0": "/ck-1"}
    for records in (
        {0: record(DONE)},
        {0: record(DONE), 1: record(None)},
        {0: record(DONE), 1: record(STOPPED)},
        {0: record(DONE), 1: record(Outcome(AttemptState.FAILED, ExitCause.KILLED, "killed"))},
    ):
        with pytest.raises(CheckpointError, match="replica 1 has nothing to aggregate"):
            replica_checkpoints(KEY, records, [0, 1], {0: "success", 1: "failed"}, LOG)
    with pytest.raises(CheckpointError, match="trained nothing"):
        replica_checkpoints(KEY, {}, [0], {}, LOG)


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ({0: record(DONE), 1: record(STOPPED)}, {"replica-0": "/ck-1", "replica-1": "/ck-7"}),
        ({0: record(DONE), 1: record(Outcome(AttemptState.STOPPED))}, {"replica-0": "/ck-1"}),
        ({0: record(DONE)}, {"replica-0": "/ck-1"}),
    ],
)
def test_a_replica_marked_success_counts_with_its_last_checkpoint_or_is_left_out(
    records: dict[int, ReplicaRecord], found: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert replica_checkpoints(KEY, records, [0, 1], {0: "success", 1: "success"}, LOG) == found
    assert "replica 1 was marked success" in caplog.text


def test_if_no_replica_has_a_checkpoint_there_is_nothing_to_aggregate() -> None:
    with pytest.raises(CheckpointError, match="no replica has a checkpoint"):
        replica_checkpoints(KEY, {0: record(Outcome(AttemptState.STOPPED))}, [0], {0: "success"}, LOG)


FAILED = Outcome(AttemptState.FAILED, ExitCause.USER_ERROR, "exit code 1")


@pytest.mark.parametrize(
    ("success", "outcomes", "says"),
    [
        (("chief", 0), [DONE, FAILED, FAILED], ""),
        (("chief", 0), [FAILED, DONE, DONE], "replica 0 has nothing to aggregate: failed, exit code 1"),
        (("at_least", 2), [FAILED, DONE, DONE], ""),
        (("at_least", 2), [FAILED, DONE, FAILED], "1 replicas have succeeded, but at least 2 must: replica 0: failed"),
    ],
)
def test_the_success_policy_says_which_replicas_may_be_missing(
    success: tuple[str, int], outcomes: list[Outcome], says: str
) -> None:
    records = {number: record(outcome) for number, outcome in enumerate(outcomes)}
    if says:
        with pytest.raises(CheckpointError, match=says):
            replica_checkpoints(KEY, records, [0, 1, 2], {}, LOG, success)
    else:
        found = replica_checkpoints(KEY, records, [0, 1, 2], {}, LOG, success)
        assert len(found) == outcomes.count(DONE)


class FakeLedger:
    """Answers one look after another; the last one for ever."""

    def __init__(self, *looks: dict[int, ReplicaRecord]) -> None:
        self.looks = list(looks)

    def replicas(self, _key: GangKey) -> dict[int, ReplicaRecord]:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


def settle(ledger: Any, folder: Path, deadline_seconds: float = 60.0) -> dict[int, ReplicaRecord]:
    return settled_records(ledger, KEY, folder, deadline_seconds=deadline_seconds, log=LOG, sleep=lambda _: None)


def test_it_waits_until_a_marked_replica_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_supervisor", lambda _: True)
    ledger = FakeLedger({0: record(None)}, {0: record(None)}, {0: record(STOPPED)})
    assert settle(ledger, tmp_path) == {0: record(STOPPED)}


def test_one_that_does_not_end_fails_the_aggregation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_supervisor", lambda _: True)
    with pytest.raises(CheckpointError, match=r"replicas \[0\] .* are still running"):
        settle(FakeLedger({0: record(None)}), tmp_path, deadline_seconds=0)


def test_without_a_supervisor_nothing_is_alive(tmp_path: Path) -> None:
    assert settle(FakeLedger({0: record(None)}), tmp_path) == {0: record(None)}
