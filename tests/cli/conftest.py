from __future__ import annotations

import json

import pytest


@pytest.fixture
def installation(settings, monkeypatch):
    """Airflow's configuration names the test's own home and locks."""
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__HOME", str(settings.home))
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__LOCK_DIR", str(settings.lock_dir))
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__CPU_SLOTS", str(settings.cpu_slots))
    return settings


@pytest.fixture
def airflow_tf(installation, capsys):
    """Run ``airflow tf …`` in this process; return exit code and what it printed, or its rows with ``--output json``."""
    from airflow.cli.cli_parser import get_parser

    def run(*words):
        code = 0
        args = get_parser().parse_args(["tf", *map(str, words)])
        try:
            args.func(args)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
            if isinstance(error.code, str):
                return code, error.code
        printed = capsys.readouterr().out
        return code, json.loads(printed) if "json" in words else printed

    return run
