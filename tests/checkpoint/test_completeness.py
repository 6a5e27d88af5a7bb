"""Which checkpoint of a folder is taken."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from airflow_tf.core.checkpoint import latest_complete
from airflow_tf.core.checkpoint.completeness import write_state
from airflow_tf.core.errors import CheckpointError


@pytest.fixture
def run(write, tmp_path):
    """Three checkpoints; the state file names the newest."""
    for step in (5, 10, 20):
        prefix = write(f"ckpt-{step}", w=np.float32([step]))
    write_state(prefix)
    return tmp_path


def damage(folder, step):
    (folder / f"ckpt-{step}.data-00000-of-00001").write_bytes(b"????")


def test_the_newest_is_taken(run):
    assert latest_complete(run) == latest_complete(run)
    assert latest_complete(run).prefix == str(run / "ckpt-20")
    assert latest_complete(run).skipped == ()


def test_a_damaged_one_is_passed_over_and_said(run):
    damage(run, 20)
    found = latest_complete(run)
    assert found.prefix == str(run / "ckpt-10")
    assert [skipped.path for skipped in found.skipped] == [str(run / "ckpt-20")]
    assert "checksum" in found.skipped[0].reason


def test_a_lost_index_is_passed_over(run):
    (run / "ckpt-20.index").unlink()
    found = latest_complete(run)
    assert found.prefix == str(run / "ckpt-10")
    assert "there is no ckpt-20.index" in found.skipped[0].reason


def test_steps_are_numbers(run):
    (run / "checkpoint").unlink()
    damage(run, 20)
    assert latest_complete(run).prefix == str(run / "ckpt-10")


def test_the_state_file_beats_the_step(run, write):
    write_state(str(run / "ckpt-10"))
    assert latest_complete(run).prefix == str(run / "ckpt-10")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"model_checkpoint_path: 3", b"", b'model_checkpoint_path: ""'])
def test_a_garbage_state_file_is_said(run, content):
    (run / "checkpoint").write_bytes(content)
    found = latest_complete(run)
    assert found.prefix == str(run / "ckpt-20")
    assert found.skipped[0].path == str(run / "checkpoint")


def test_a_moved_folder_still_works(run):
    (run / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/run/ckpt-10"\n')
    assert latest_complete(run).prefix == str(run / "ckpt-10")


def test_without_steps_the_younger_file_counts(write, tmp_path):
    for seconds, name in ((200, "old"), (300, "new"), (100, "older")):
        write(name, w=np.float32([1]))
        os.utime(tmp_path / f"{name}.index", (seconds, seconds))
    assert latest_complete(tmp_path).prefix == str(tmp_path / "new")


def test_nothing_is_not_the_same_as_nothing_whole(run, tmp_path):
    assert latest_complete(tmp_path / "none") == latest_complete(tmp_path / "nowhere")
    assert latest_complete(tmp_path / "none").skipped == ()
    for step in (5, 10, 20):
        damage(run, step)
    found = latest_complete(run)
    assert found.prefix is None
    assert len(found.skipped) == 3


def test_an_unreadable_folder_is_an_error(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(CheckpointError, match="cannot be read: Not a directory"):
        latest_complete(Path(file))
