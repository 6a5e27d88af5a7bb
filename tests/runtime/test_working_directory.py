"""Where a program begins."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.runtime import replica as module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # undone afterwards
    (tmp_path / "attempt").mkdir()
    return tmp_path / "attempt"


def launch(folder: Path, working_directory: str = "") -> ReplicaLaunch:
    place = str(folder)
    return ReplicaLaunch(0, 1, "m:f", place, working_directory=working_directory, folder=place)


def test_it_begins_in_its_own_folder_or_in_the_declared_one(folder: Path, tmp_path: Path) -> None:
    module._enter_folder(launch(folder))
    assert Path.cwd() == folder
    module._enter_folder(launch(folder, str(tmp_path)))
    assert Path.cwd() == tmp_path


def test_a_folder_that_cannot_be_entered_is_refused_in_words(folder: Path) -> None:
    with pytest.raises(SystemExit):
        module._enter_folder(launch(folder, "/nowhere"))
    told = json.loads((folder / "error.json").read_text())["refused"]
    assert told == f"train.working_directory /nowhere cannot be entered: {os.strerror(2)}"
