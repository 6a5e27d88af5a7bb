"""Copies of a running training's checkpoints: they come while it trains, the last one too, and disturb nothing."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_tf.core.checkpoint import verify
from airflow_tf.core.errors import StorageUnavailableError
from airflow_tf.core.ledger import Outcome, ReplicaRecord
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import AttemptState
from airflow_tf.hooks import carrying as hook
from airflow_tf.hooks.airflow_run import TaskRun
from airflow_tf.hooks.carrying import Generation, forget, rescued, upload_of
from airflow_tf.storage.base import Uri
from airflow_tf.storage.carrying import Carried, generation_uri
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.storage.registry import open_file_system
from airflow_tf.supervisor import carrier
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


ENDS = SAVES_TWICE + "raise SystemExit(int(os.environ['CODE']))\n"


def told(uri: str, **environment: str) -> dict[str, Any]:
    options = StorageOptions.from_uri(uri).to_json()
    return {"uri": uri, "options": options, "environment": environment, "every_seconds": 0.2}


def names(folder: Path) -> set[str]:
    return {path.name.partition("-")[2] for path in folder.iterdir()} if folder.exists() else set()


def test_checkpoints_are_copied_while_it_trains_and_when_it_has_failed(settings: Settings, tmp_path: Path) -> None:
    side, gate = tmp_path / "store" / "replica-0" / "generation-1", tmp_path / "gate"
    gang = Gang(settings, tmp_path)
    environment = {"GATE": str(gate), "CODE": "1"}
    watch = gang.start(ENDS, upload=told(side.parent.as_uri(), SECRET="x"), environment=environment)
    wait_for(lambda: names(side) == {"ck-1"}, "a copy of the first checkpoint while it trains")
    verify(str(next(side.iterdir()) / "ck-1"))
    gate.touch()
    assert watch.end().state is AttemptState.FAILED
    wait_for(lambda: names(side) == {"ck-2"}, "a copy of the last checkpoint alone")
    verify(str(next(side.iterdir()) / "ck-2"))
    wait_for(lambda: not list(gang.folder.glob("replica-0/generation-1/.carry-*")), "the end of the last copy")
    (launch,) = gang.folder.glob("replica-0/generation-1/attempt-1/launch.json")
    assert json.loads(launch.read_text())["upload"] is None


def test_a_checkpoint_saved_on_sigterm_is_copied(settings: Settings, tmp_path: Path) -> None:
    side = tmp_path / "store"
    program = (
        SAVES_TWICE.replace("for step in (1, 2):", "def save(step):").partition("    while")[0]
        + """
import signal
def stop(*_):
    save(2)
    raise SystemExit(1)
signal.signal(signal.SIGTERM, stop)
save(1)
print("saved", flush=True)
time.sleep(60)
"""
    )
    watch = Gang(settings, tmp_path).start(program, upload=told(side.as_uri()), kill_grace_seconds=30.0)
    watch.line("saved")
    watch.view.stop("enough")
    assert watch.end().state is AttemptState.STOPPED
    wait_for(lambda: names(side / "generation-1") == {"ck-2"}, "a copy of the checkpoint saved at the end")


def test_nothing_is_copied_any_more_when_the_training_has_succeeded(settings: Settings, tmp_path: Path) -> None:
    """Else a late copy would come after those of the run were removed, with its publication."""
    side, gate = tmp_path / "store", tmp_path / "gate"
    gang = Gang(settings, tmp_path)
    upload = told(side.as_uri()) | {"every_seconds": 600.0}
    watch = gang.start(SAVES_TWICE, upload=upload, environment={"GATE": str(gate)})
    wait_for(lambda: names(side / "generation-1") == {"ck-1"}, "the first copy")
    gate.touch()
    assert watch.end().state is AttemptState.SUCCEEDED
    wait_for(lambda: gang.supervisor_pid() is None, "the end of the supervisor")
    assert names(side / "generation-1") == {"ck-1"}


def test_a_destination_that_fails_does_not_disturb_the_training_and_is_told_once(
    settings: Settings, tmp_path: Path
) -> None:
    gang, gate = Gang(settings, tmp_path), tmp_path / "gate"
    watch = gang.start(SAVES_TWICE, upload=told("file:///sys/models"), environment={"GATE": str(gate)})
    log_file = gang.folder / "carrier.log"
    wait_for(lambda: log_file.exists() and log_file.read_text().count("not copied") > 1, "the copy's second failure")
    gate.touch()
    assert watch.end().state is AttemptState.SUCCEEDED
    (line,) = [line for line in watch.infos if "was not copied" in line]
    assert "/sys/models" in line


def test_a_process_that_dies_or_cannot_be_started_is_told(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang, gate = Gang(settings, tmp_path), tmp_path / "gate"
    upload = told(tmp_path.as_uri(), PYTHONHOME="/nowhere")
    watch = gang.start(SAVES_TWICE, upload=upload, environment={"GATE": str(gate)})
    wait_for(lambda: any("the process that did it ended with 1" in line for line in watch.infos), "the end")
    gate.touch()
    assert watch.end().state is AttemptState.SUCCEEDED

    def fail(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(carrier.subprocess, "Popen", fail)
    notes: list[str] = []
    launch: Any = dataclasses.make_dataclass("Launch", ["upload", "checkpoint_folder", "generation"])
    with carrier.Carrier(tmp_path / "carrier.log", notes.append) as copies:
        copies.begin([launch(told("file:///x"), "/y", 1)])
    assert notes == ["no checkpoint is copied while this training goes on: no more processes"]


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


def test_a_copy_stays_what_it_was_when_the_program_writes_into_the_same_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As TensorFlow does when one prefix is saved again; shards are renamed into place."""
    folder, side = tmp_path / "run" / "checkpoints", tmp_path / "side"
    folder.mkdir(parents=True)
    write_checkpoint(folder / "model")
    first, upload = (folder / "model.index").read_bytes(), carrier.carry

    def saved_meanwhile(*arguments: Any, **options: Any) -> str:
        with (folder / "model.index").open("r+b") as index:
            index.truncate()
        return upload(*arguments, **options)

    monkeypatch.setattr(carrier, "carry", saved_meanwhile)
    copy_newest(folder, side.as_uri(), StorageOptions.from_uri(side.as_uri()), None)
    (copy,) = side.iterdir()
    assert (copy / "model.index").read_bytes() == first


def carried_at(folder: Path) -> Carried:
    files = open_file_system(Uri.parse(folder.as_uri()), StorageOptions.from_uri(folder.as_uri()))
    reporter = Reporter(os.open(os.devnull, os.O_WRONLY))
    return Carried(Uri.parse(folder.as_uri()), files, reporter, Patience(0.0, reporter.note))


def test_a_copy_that_comes_late_replaces_nothing_newer_and_a_new_one_all_that_is_older(tmp_path: Path) -> None:
    old, new = (tmp_path / f"{time:020d}-ck-{time}" for time in (1, 2))
    for local in (old, new):
        local.mkdir()
        (local / "file").write_text(local.name)
    replica = tmp_path / "store" / "replica-0"
    for left in (f"generation-1/{old.name}", f"generation-2/.airflow_tf-upload-new-{old.name}-{'0' * 12}"):
        (replica / left).mkdir(parents=True)
    (replica / "generation-3").mkdir()
    place = carried_at(replica / "generation-2")
    assert place.put(new) == f"{place.uri}/{new.name}"
    assert sorted(path.name for path in replica.iterdir()) == ["generation-2", "generation-3"]
    assert place.put(old) == f"{place.uri}/{new.name}"
    assert [path.name for path in (replica / "generation-2").iterdir()] == [new.name]
    assert carried_at(replica).newest() == place.newest() == f"{place.uri}/{new.name}"


def task_run(try_number: int = 2, task_id: str = "train") -> TaskRun:
    return TaskRun("dag", "run", task_id, "ti", try_number, 5, 4, 10.0, in_process=False)


@pytest.fixture
def ask(settings: Settings, tmp_path: Path) -> Callable[..., str | None]:
    """Ask for the copy of replica 0 as its ledger knows it."""
    upload = {"destination": f"file://{tmp_path}/models", "hdfs_conn_id": None, "every": "10m"}

    def call(
        *, generation: int = 1, attempts: int = 0, run: TaskRun | None = None, scratch: bool = False, **fields: Any
    ) -> str | None:
        record = ReplicaRecord(generation, 1, attempts, fields.get("outcome"))
        found = Generation(run or task_run(), fields.get("replica", 0), record, tmp_path / "gang")
        told = rescued(found, upload, settings=settings, log=log, allow_from_scratch=scratch)
        return told["copied_checkpoint"] if told else None

    return call


@pytest.fixture
def copied(tmp_path: Path) -> Callable[..., bytes]:
    """Copy a checkpoint of a generation; return its index."""

    def call(generation: int, step: int, run: TaskRun | None = None) -> bytes:
        saved = tmp_path / "lost host" / str(step)
        saved.mkdir(parents=True)
        write_checkpoint(saved / f"ck-{step}", value=step)
        told = upload_of({"destination": f"file://{tmp_path}/models", "every": "10m"}, run or task_run(), 0)
        assert told["every_seconds"] == 600
        uri = generation_uri(told["uri"], generation)
        copy_newest(saved, uri, StorageOptions.from_json(told["options"]), None)
        return (saved / f"ck-{step}.index").read_bytes()

    return call


def test_a_host_that_has_no_checkpoint_of_a_generation_begins_with_its_copy(
    ask: Callable[..., str | None], copied: Callable[..., bytes], tmp_path: Path
) -> None:
    assert ask() is None  # nothing was copied yet
    index = copied(1, 7)
    for prefix in (ask(), ask(attempts=1)):  # the ledger was lost with the host, or was not
        assert prefix is not None
        assert Path(f"{prefix}.index").read_bytes() == index
    assert ask(replica=1) is None
    assert ask(generation=2, attempts=1) is None  # cleared since: it begins anew
    own = tmp_path / "gang" / "replica-0" / "generation-1" / "checkpoints"
    own.mkdir(parents=True)
    assert ask() is not None
    write_checkpoint(own / "ck-1")
    assert ask() is None  # its own is newer
    copied(2, 8)
    assert ask(generation=2, attempts=1) is not None


def test_a_training_that_moved_away_and_back_goes_on_from_where_the_other_host_came(
    ask: Callable[..., str | None],
    copied: Callable[..., bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = tmp_path / "gang" / "replica-0" / "generation-1" / "checkpoints"
    own.mkdir(parents=True)
    write_checkpoint(own / "ck-10")
    index = copied(1, 20)
    prefix = ask(attempts=1)
    assert prefix is not None
    assert Path(f"{prefix}.index").read_bytes() == index
    write_checkpoint(own / "ck-30")
    assert ask(attempts=1) is None

    def hung(*_: object, **__: object) -> None:
        raise StorageUnavailableError("the NameNode hangs")

    monkeypatch.setattr(hook, "carried", hung)
    assert ask(attempts=1) is None
    assert "goes on from what this host has: the NameNode hangs" in caplog.text


def test_a_lost_ledger_finds_what_an_earlier_one_counted(
    ask: Callable[..., str | None], copied: Callable[..., bytes]
) -> None:
    index = copied(3, 7)
    prefix = ask()
    assert prefix is not None
    assert Path(f"{prefix}.index").read_bytes() == index
    assert ask(generation=2) is None


def test_nobody_is_asked_at_the_first_try_or_while_it_trains_here(
    ask: Callable[..., str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hung(*_: object, **options: Any) -> None:
        assert options["stall_seconds"] <= 20
        raise StorageUnavailableError("the NameNode hangs")

    monkeypatch.setattr(hook, "carried", hung)
    monkeypatch.setattr(hook, "has_supervisor", lambda _folder: True)
    assert ask(run=task_run(1)) is None
    assert ask(attempts=1) is None
    assert ask(scratch=True) is None
    for fields in ({}, {"attempts": 1, "outcome": Outcome(AttemptState.FAILED)}):
        with pytest.raises(StorageUnavailableError, match="the NameNode hangs"):
            ask(**fields)


def test_long_task_ids_that_begin_alike_have_copies_of_their_own_and_only_those_are_forgotten(
    ask: Callable[..., str | None], copied: Callable[..., bytes], tmp_path: Path
) -> None:
    first, second = (task_run(task_id=f"group.{'train' * 9}_{name}") for name in "ab")
    for step, run in ((1, first), (2, second)):
        index = copied(1, step, run)
        prefix = ask(run=run)
        assert prefix is not None
        assert Path(f"{prefix}.index").read_bytes() == index
    forget({"destination": f"file://{tmp_path}/models", "every": "10m"}, first, first.task_id)
    assert ask(run=first) is None
    assert ask(run=second) is not None


def test_a_supervisor_is_told_what_a_client_of_the_storage_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    read = {"HADOOP_CONF_DIR", "KRB5_CONFIG", "KRB5CCNAME", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY", "no_proxy"}
    for name in (*read, "AIRFLOW__CORE__FERNET_KEY"):
        monkeypatch.setenv(name, "x")
    environment = upload_of({"destination": "file:///models", "every": "1m"}, task_run(), 0)["environment"]
    assert read <= set(environment)
    assert "AIRFLOW__CORE__FERNET_KEY" not in environment
