"""Many processes want few devices: no device ever has two holders, and nothing that is free stays unused."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from airflow_tf.core.errors import AirflowTfError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.read import LedgerReader
from tests.ledger.conftest import HOST, devices, request

SPAWN = multiprocessing.get_context("spawn")
RACERS, DEVICES, ROUNDS = 8, 4, 200


def race(settings, number, barrier, answers, claims):
    """Take one device per round; a file made exclusively is the witness that nobody else has it."""
    ledger = open_ledger(settings)
    key = GangKey(ledger.ledger_id, f"racer-{number}", "run", "train")
    granted_rounds, faults = 0, []
    for _ in range(ROUNDS):
        barrier.wait(timeout=120)
        try:
            answer = ledger.reserve(key, request(), [0], HOST, devices(DEVICES))
            if isinstance(answer, Granted):
                granted_rounds += 1
                (member,) = answer.members
                witness = claims / member.devices[0].uuid
                os.close(os.open(witness, os.O_CREAT | os.O_EXCL))
                ledger.confirm(member, os.getpid())
            barrier.wait(timeout=120)  # all have asked: whoever has none was refused while four held theirs
            if isinstance(answer, Granted):
                witness.unlink()
                ledger.release(member)
        except (AirflowTfError, OSError) as error:
            faults.append(repr(error))
            barrier.abort()
            break
    answers.put((granted_rounds, faults))


@pytest.mark.slow
def test_eight_processes_on_four_devices_never_share_one(ledger_settings, tmp_path, no_processes_left):
    claims = tmp_path / "claims"
    claims.mkdir()
    ledger = open_ledger(ledger_settings)
    barrier, answers = SPAWN.Barrier(RACERS), SPAWN.Queue()
    arguments = [(ledger_settings, number, barrier, answers, claims) for number in range(RACERS)]
    processes = [SPAWN.Process(target=race, args=each) for each in arguments]
    for process in processes:
        process.start()
    found = [answers.get(timeout=300) for _ in processes]
    for process in processes:
        process.join(timeout=30)
    assert [faults for _, faults in found if faults] == []
    assert sum(granted for granted, _ in found) == DEVICES * ROUNDS
    assert LedgerReader(ledger).reservations() == []
