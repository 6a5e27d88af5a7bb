"""The check for left processes must be able to fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_a_detached_process_is_seen_and_a_finished_one_is_not(tmp_path, monkeypatch, pytestconfig):
    conftest = pytestconfig.pluginmanager.get_plugin(str(Path(__file__).parents[1] / "conftest.py"))
    monkeypatch.setattr(conftest, "LEFT_PROCESS_DEADLINE_SECONDS", 0.3)
    before = {process.pid for process in conftest._ours(tmp_path)}  # servers of this session
    check = conftest.no_processes_left.__wrapped__(tmp_path)
    next(check)
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        start_new_session=True,
        env={"AIRFLOW_TF_RUN_FOLDER": str(tmp_path / "run")},
    )
    with pytest.raises(AssertionError, match=rf"processes left behind:\s+{process.pid}: "):
        next(check)
    process.communicate(b"\n", timeout=10)
    assert conftest._describe(tmp_path, before) == []


def test_airflow_sees_only_the_private_home(airflow_home):
    code = "from airflow.configuration import conf; print(conf.get('core', 'dags_folder'))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert shown.stdout.split()[-1] == str(airflow_home / "dags")
