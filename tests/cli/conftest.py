from __future__ import annotations

import json

import pytest

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted
from airflow_tf.devices.registry import read_all
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.supervisor.acquire import this_host
from tests.supervisor.harness import Gang, wait_for

SLEEP = "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(300)\n"


@pytest.fixture
def installation(settings, monkeypatch):
    """Airflow's configuration names the test's own home and locks."""
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__HOME", str(settings.home))
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__LOCK_DIR", str(settings.lock_dir))
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__CPU_SLOTS", str(settings.cpu_slots))
    return settings


@pytest.fixture
def gang(installation, tmp_path):
    """A gang that really runs."""
    return Gang(installation, tmp_path)


@pytest.fixture
def wait_until_running():
    """Wait for the supervisor's heartbeat, which records that the attempt runs."""

    def wait(gang):
        reader = LedgerReader(gang.ledger)
        wait_for(lambda: reader.runs()[0].replicas[0].state == "running", "the attempt is recorded")

    return wait


@pytest.fixture
def reserve(installation, ledger):
    """Reserve CPU slots for a gang of a DAG; return its key and its first member."""

    def call(dag_id, count=1):
        key = GangKey(ledger.ledger_id, dag_id, "run", "train")
        readings = read_all(installation, "cpu")
        granted = ledger.reserve(key, DeviceRequest("cpu"), range(count), this_host(), readings)
        assert isinstance(granted, Granted), granted
        return key, granted.members[0]

    return call


@pytest.fixture
def airflow_tf(installation, capsys):
    """Run ``airflow tf …`` in this process; return exit code and what it printed, or its rows with ``--output json``."""
    from airflow.cli.cli_parser import get_parser

    def run(*words):
        code = 0
        args = get_parser().parse_args(["tf", *map(str, words)])
        capsys.readouterr()  # Airflow's logs of what fixtures did, where nothing was imported before
        try:
            args.func(args)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
            if isinstance(error.code, str):
                capsys.readouterr()
                return code, error.code
        printed = capsys.readouterr().out
        return code, json.loads(printed) if "json" in words else printed

    return run
