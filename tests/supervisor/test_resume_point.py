"""Where an attempt begins: never from scratch in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.supervisor.attempt import resume_point
from tests.supervisor.harness import write_checkpoint

LATER_NS = 2**62


def launch(tmp_path: Path, **changes: object) -> ReplicaLaunch:
    values = {"replica": 0, "count": 1, "entrypoint": "x", "code_folder": "y", "checkpoint_folder": str(tmp_path)}
    return ReplicaLaunch(**(values | changes))


@pytest.mark.parametrize(
    ("saved", "changes", "expected"),
    [
        ("nothing", {}, None),
        ("nothing", {"initial_checkpoint": "/warm/model"}, "/warm/model"),
        ("whole", {"initial_checkpoint": "/warm/model"}, "ckpt-1"),
        ("whole", {"fresh": True}, None),
        ("whole", {"fresh": True, "initial_checkpoint": "/warm/model"}, "/warm/model"),
        ("damaged", {"allow_from_scratch": True}, None),
        ("damaged", {"allow_from_scratch": True, "initial_checkpoint": "/warm/model"}, "/warm/model"),
        ("damaged", {"fresh": True}, None),
        ("nothing", {"copied_checkpoint": "/copy/ck-7", "copied_at_ns": 1, "initial_checkpoint": "/w"}, "/copy/ck-7"),
        ("whole", {"copied_checkpoint": "/copy/ck-7", "copied_at_ns": 1}, "ckpt-1"),
        ("whole", {"copied_checkpoint": "/copy/ck-7", "copied_at_ns": LATER_NS}, "/copy/ck-7"),
        ("damaged", {"copied_checkpoint": "/copy/ck-7", "copied_at_ns": 1}, "/copy/ck-7"),
    ],
)
def test_where_an_attempt_begins(tmp_path, saved, changes, expected):
    save(tmp_path, saved)
    found = resume_point(launch(tmp_path, **changes))
    assert found == (str(tmp_path / expected) if expected == "ckpt-1" else expected)


def test_what_cannot_be_read_is_an_error_even_with_an_initial_checkpoint(tmp_path):
    save(tmp_path, "damaged")
    with pytest.raises(CheckpointError, match="does not start from scratch silently"):
        resume_point(launch(tmp_path, initial_checkpoint="/warm/model"))


def save(folder: Path, saved: str) -> None:
    if saved != "nothing":
        write_checkpoint(folder / "ckpt-1")
    if saved == "damaged":
        (folder / "ckpt-1.index").write_bytes(b"garbage")
