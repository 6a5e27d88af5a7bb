"""Copies of a running training's checkpoints: they come while it trains, the last one too, and disturb nothing."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_tf.core.checkpoint import verify
from airflow_tf.core.identity import RunFolders
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import AttemptState
from airflow_tf.hooks.airflow_run import TaskRun
from airflow_tf.hooks.carrying import forget, rescued, upload_of
from airflow_tf.storage.options import StorageOptions
from airflow_tf.supervisor.carrier import copy_newest
from tests.supervisor.harness import Gang, wait_for, write_checkpoint

pytestmark = pytest.mark.usefixtures("no_processes_left")

SAVES_TWICE = """
import os, struct, time
from airflow_tf.core.checkpoint import BundleWriter, Entry
for step in (1, 2):
    with BundleWriter(os.environ["AIRFLOW_TF_CHECKPOINT_DIR"] + f"/ck-{step}") as writer:
        writer.add(b"weight", Entry(1, (1,), 0, 0, 4, 0), [struct.pack("<f", step)])
        writer.commit()
    while step == 1 and not os.path.exists(os.environ["GATE"]):
        time.sleep(0.05)
"""
log = logging.getLogger("test")


def told(uri: str) -> dict[str, Any]:
    return {"uri": uri, "options": StorageOptions.from_uri(uri).to_json(), "every_seconds": 0.2}


def names(folder: Path) -> set[str]:
    return {path.name.partition("-")[2] for path in folder.iterdir()} if folder.exists() else set()


def test_checkpoints_are_copied_while_it_trains_and_when_it_has_ended(settings: Settings, tmp_path: Path) -> None:
    side, gate = tmp_path / "store" / "replica-0", tmp_path / "gate"
    gang = Gang(settings, tmp_path)
    watch = gang.start(SAVES_TWICE, upload=told(side.as_uri()), environment={"GATE": str(gate)})
    wait_for(lambda: names(side) == {"ck-1"}, "a copy of the first checkpoint while it trains")
    verify(str(next(side.iterdir()) / "ck-1"))
    gate.touch()
    assert watch.end().state is AttemptState.SUCCEEDED
    wait_for(lambda: names(side) == {"ck-2"}, "a copy of the last checkpoint alone")
    verify(str(next(side.iterdir()) / "ck-2"))
    wait_for(lambda: not list(gang.folder.rglob(".carry-*")), "the end of the last copy")


def test_a_destination_that_fails_does_not_disturb_the_training(settings: Settings, tmp_path: Path) -> None:
    gang, gate = Gang(settings, tmp_path), tmp_path / "gate"
    watch = gang.start(SAVES_TWICE, upload=told("file:///sys/models"), environment={"GATE": str(gate)})
    carrier_log = gang.folder / "carrier.log"
    wait_for(lambda: carrier_log.exists() and "not copied" in carrier_log.read_text(), "the copy's failure")
    gate.touch()
    assert watch.end().state is AttemptState.SUCCEEDED


def test_what_is_copied_already_is_not_copied_again(tmp_path: Path) -> None:
    folder, side = tmp_path / "run" / "checkpoints", tmp_path / "side"
    options = StorageOptions.from_uri(side.as_uri())
    folder.mkdir(parents=True)
    assert copy_newest(folder, side.as_uri(), options, None) is None
    write_checkpoint(folder / "ck-1")
    done = copy_newest(folder, side.as_uri(), options, None)
    assert names(side) == {"ck-1"}
    shutil.rmtree(side)
    assert copy_newest(folder, side.as_uri(), options, done) == done
    assert not side.exists()
    assert copy_newest(folder, side.as_uri(), options, None) == done  # a new process asks anew


def test_what_is_saved_under_one_prefix_again_and_again_is_copied_again(tmp_path: Path) -> None:
    folder, side = tmp_path / "run" / "checkpoints", tmp_path / "side"
    options, done = StorageOptions.from_uri(side.as_uri()), None
    folder.mkdir(parents=True)
    for value in (1.0, 2.0):
        write_checkpoint(folder / "model", value=value)
        done = copy_newest(folder, side.as_uri(), options, done)
        (copy,) = side.iterdir()
        assert (copy / "model.index").read_bytes() == (folder / "model.index").read_bytes()


def task_run(max_tries: int) -> TaskRun:
    return TaskRun("dag", "run", "train", "ti", max_tries, max_tries, 2, 10.0, in_process=False)


def test_a_host_that_has_no_checkpoint_of_the_run_begins_with_the_copy(settings: Settings, tmp_path: Path) -> None:
    upload = {"destination": f"file://{tmp_path}/models", "hdfs_conn_id": None, "every": "10m"}
    folders, run = RunFolders(settings.home, "dag", "run"), task_run(2)
    ask = {"folders": folders, "settings": settings, "log": log}
    assert rescued(upload, run, 0, **ask) is None  # nothing was copied yet

    saved = tmp_path / "lost host" / "checkpoints"
    saved.mkdir(parents=True)
    write_checkpoint(saved / "ck-7", value=7.0)
    copies = upload_of(upload, run, 0)
    assert copies["every_seconds"] == 600
    copy_newest(saved, copies["uri"], StorageOptions.from_json(copies["options"]), None)
    prefix = rescued(upload, run, 0, **ask)
    assert prefix is not None
    assert Path(f"{prefix}.index").read_bytes() == (saved / "ck-7.index").read_bytes()

    assert rescued(upload, run, 1, **ask) is None  # another replica
    assert rescued(upload, task_run(5), 0, **ask) is None  # cleared since: it begins anew
    forget(upload, run)
    assert rescued(upload, run, 0, **ask) is None
    own = folders.root / "train--12345678" / "replica-0" / "generation-1" / "checkpoints"
    own.mkdir(parents=True)
    write_checkpoint(own / "ck-1")
    copy_newest(saved, copies["uri"], StorageOptions.from_json(copies["options"]), None)
    assert rescued(upload, run, 0, **ask) is None  # its own counts
