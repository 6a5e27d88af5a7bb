"""The checkpoint that a training begins with."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from airflow_tf.core.errors import CheckpointError, StorageNotFoundError
from airflow_tf.core.identity import RunFolders
from airflow_tf.hooks.initial import ensure_initial
from airflow_tf.operators.beginning import initial_source
from tests.supervisor.harness import write_checkpoint

log = logging.getLogger("test")


@pytest.fixture
def base(tmp_path):
    for day in (1, 2):
        publish(tmp_path / "models", day)
    return tmp_path / "models"


def publish(base: Path, day: int) -> None:
    folder = base / f"v=2026010{day}T000000Z-0000000{day}"
    folder.mkdir(parents=True)
    write_checkpoint(folder / "model", value=day)
    (folder / "manifest.json").write_text(json.dumps({"fence": 1, "digest": str(day), "metrics": {}}))
    (folder / "_SUCCESS").touch()


@pytest.fixture
def ask(settings):
    def call(source, **options):
        folders = RunFolders(settings.home, "dag", "run")
        return ensure_initial(
            str(source), hdfs_conn_id=None, folders=folders, task_id="train", settings=settings, log=log, **options
        )

    return call


def data(prefix):
    return Path(f"{prefix}.data-00000-of-00001").read_bytes()


def test_the_newest_version_stays_the_same_for_all_who_ask_in_a_run(ask, base):
    prefix = ask(f"file://{base}/latest")
    first = data(prefix)
    assert first == data(base / "v=20260102T000000Z-00000002" / "model")
    publish(base, 3)
    assert data(ask(f"file://{base}/latest")) == first


def test_a_version_and_a_prefix_can_be_named(ask, base):
    version = f"file://{base}/v=20260101T000000Z-00000001"
    assert data(ask(version)) == data(base / "v=20260101T000000Z-00000001" / "model")
    assert data(ask(f"{version}/model")) == data(base / "v=20260101T000000Z-00000001" / "model")


def test_what_is_missing_or_damaged_is_an_error(ask, base, tmp_path):
    with pytest.raises(StorageNotFoundError):
        ask(f"file://{base}/v=20270101T000000Z-00000001")
    index = base / "v=20260102T000000Z-00000002" / "model.index"
    index.write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match="damaged"):
        ask(f"file://{base}/latest")


def test_nothing_published_is_an_error_unless_the_first_run_may_begin_from_scratch(ask, tmp_path):
    with pytest.raises(CheckpointError, match="there is no version below"):
        ask(f"file://{tmp_path}/none/latest")
    assert ask(f"file://{tmp_path}/none/latest", allow_from_scratch=True) is None


def test_what_a_cleared_training_has_made_anew_at_the_same_place_is_taken(ask, tmp_path):
    source = f"file://{tmp_path}/average"
    write_checkpoint(tmp_path / "average", value=1)
    first = data(ask(source, made="1"))
    write_checkpoint(tmp_path / "average", value=2)
    assert data(ask(source, made="1")) == first  # a retry goes on with what it began with
    assert data(ask(source, made="2")) == data(tmp_path / "average") != first


def test_a_training_of_the_same_run_is_told_apart_by_its_checkpoint_not_by_its_place(tmp_path):
    class Ti:
        def xcom_pull(self, task_ids):
            assert task_ids == "pretrain"
            return {"candidates": {"average": str(tmp_path / "average")}, "chosen": "average", "same_start": True}

    write_checkpoint(tmp_path / "average", value=1)
    source, first = initial_source({"from_task": "pretrain"}, Ti())
    assert source == f"file://{tmp_path}/average"
    (tmp_path / "average.index").unlink()
    with pytest.raises(CheckpointError, match="is not on this host"):
        initial_source({"from_task": "pretrain"}, Ti())
    write_checkpoint(tmp_path / "average", value=2)
    assert initial_source({"from_task": "pretrain"}, Ti())[1] != first
    assert initial_source({"source": "file:///x", "digest": "d"}, Ti()) == ("file:///x", "d")
    assert initial_source(None, Ti()) == ("", "")


def test_trainings_with_long_names_begin_each_with_its_own(settings, tmp_path):
    folders = RunFolders(settings.home, "dag", "run")
    long = "recommendations.finetune_on_the_customers_of_"
    for day, country in ((1, "de"), (2, "us")):
        publish(tmp_path / country, day)
        prefix = ensure_initial(
            f"file://{tmp_path / country}/latest",
            hdfs_conn_id=None,
            folders=folders,
            task_id=f"{long}{country}.train",
            settings=settings,
            log=log,
        )
        assert data(prefix) == data(next((tmp_path / country).glob("v=*")) / "model")
    assert folders.aggregate(f"{long}de.aggregate_checkpoints") != folders.aggregate(f"{long}de.export")
    assert folders.aggregate("aggregate_checkpoints").name == "aggregate_checkpoints--aggregate"
