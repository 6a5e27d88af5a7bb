"""What a local folder of checkpoints holds while a program or a removal takes some away."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_tf.core.checkpoint import folder as looked_at
from airflow_tf.core.checkpoint.folder import checkpoints


def unlink(folder, name):
    for path in folder.glob(f"{name}.*"):
        path.unlink()


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_checkpoint_that_is_removed_during_a_look_is_left_out(write, tmp_path, monkeypatch, is_listed):
    for step in (5, 10):
        write(f"ckpt-{step}", w=[1.0])
    found_by = looked_at._files

    def files(folder, name):
        listed = found_by(folder, name)
        if name == "ckpt-5":
            unlink(folder, name)
        return listed if is_listed else found_by(folder, name)

    monkeypatch.setattr(looked_at, "_files", files)
    assert [each.step for each in checkpoints(tmp_path)] == [10]


def test_a_folder_that_is_removed_during_a_look_has_no_checkpoints(write, tmp_path, monkeypatch):
    folder = Path(write("a/ckpt-5", w=[1.0])).parent
    found_by = looked_at._files

    def files(folder, name):
        shutil.rmtree(folder)
        return found_by(folder, name)

    monkeypatch.setattr(looked_at, "_files", files)
    assert checkpoints(folder) == []
