"""Publishing as a task does it: what the manifest tells, the fence at the last moment, retention, the asset event."""

from __future__ import annotations

import datetime as dt
import json
import struct
import types
from pathlib import Path

import google_crc32c
import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException

from airflow_tf.core.checkpoint import BundleWriter, Entry, verify
from airflow_tf.core.identity import digest
from airflow_tf.operators import checkpoint as module
from airflow_tf.operators.checkpoint import CheckpointPublishOperator


@pytest.fixture
def base(tmp_path):
    return tmp_path / "models"


@pytest.fixture
def candidate(tmp_path):
    prefix = tmp_path / "run" / "average"
    with BundleWriter(str(prefix)) as writer:
        writer.add(b"step", Entry(9, (), 0, 0, 0, 0), [struct.pack("<q", 70)])
        writer.add(b"w", Entry(1, (1,), 0, 0, 0, 0), [struct.pack("<f", 1.0)])
        writer.commit()
    return str(prefix)


@pytest.fixture
def publish(settings, monkeypatch, tmp_path, base, candidate):
    """Execute the operator for the run of a day; ``fences`` are those of the ledger at that moment."""
    monkeypatch.setattr(module, "load_settings", lambda: settings)
    (tmp_path / "train.py").write_text("print()")
    upload = {"destination": f"file://{base}", "hdfs_conn_id": None, "every": "10m"}
    declared = {"entrypoint": "train.py", "session_config": {"a": 1}, "upload": upload}
    train = types.SimpleNamespace(is_mapped=True, partial_kwargs=declared)
    dag = types.SimpleNamespace(fileloc=str(tmp_path / "dag.py"), get_task=lambda _task_id: train)

    def call(day=1, fences=(3,), aggregated=None, evaluation=None, exported=None, try_number=1, **options):
        records = {n: types.SimpleNamespace(fence=fence) for n, fence in enumerate(fences)}
        ledger = types.SimpleNamespace(ledger_id="x", replicas=lambda _key: records)
        monkeypatch.setattr(module, "open_ledger", lambda _settings: ledger)
        found = {"candidates": {"average": candidate}, "chosen": "average", "method": "average", "fence": 3}
        pulled = {"aggregate_checkpoints": found | (aggregated or {}), "evaluate": evaluation, "export": exported}
        asset = Asset(f"file://{base}")
        ti = types.SimpleNamespace(
            dag_id="dag", task_id="publish", run_id=f"run {day}", id="id", try_number=try_number, max_tries=0, map_index=None,
            xcom_pull=lambda task_ids: pulled[task_ids],
        )  # fmt: skip
        events = {asset: types.SimpleNamespace(extra={})}
        operator = CheckpointPublishOperator(
            task_id="publish",
            destination=f"file://{base}",
            outlets=[asset],
            evaluation_task="evaluate" if evaluation else None,
            export_task="export" if exported else None,
            **options,
        )
        context = {
            "ti": ti,
            "task": operator,
            "dag": dag,
            "dag_run": types.SimpleNamespace(run_after=dt.datetime(2026, 1, day, tzinfo=dt.UTC), bundle_version="abc"),
            "outlet_events": events,
        }
        return operator.execute(context), events[asset].extra

    return call


def test_a_version_tells_all_about_its_origin_and_the_asset_event_its_step(publish, base):
    result, extra = publish(
        aggregated={"metrics": {"replica-0": {"loss": 2.0}}, "reports": {"average": {"weights": [1]}}}
    )
    folder = Path(result["uri"].removeprefix("file://"))
    manifest = json.loads((folder / "manifest.json").read_text())
    verify(str(folder / "model"))
    origin = manifest["origin"]
    assert (origin["step"], origin["candidate"], origin["session_config"]) == (70, "average", {"a": 1})
    assert origin["code"]["bundle_version"] == "abc"
    assert len(origin["code"]["sha256"]) == 64
    assert origin["aggregation"]["weights"] == [1]
    assert origin["packages"].keys() >= {"airflow-tf", "apache-airflow"}
    assert origin["inputs"] == {}
    assert (extra["step"], extra["uri"], extra["digest"]) == (70, result["uri"], manifest["digest"])
    assert (base / "_latest").read_text() == folder.name


def test_an_average_that_a_disk_has_changed_since_it_was_made_is_not_published(publish, base, candidate):
    data = Path(f"{candidate}.data-00000-of-00001")
    made = data.read_bytes()
    reports = {"average": {"data": {"size": len(made), "crc32c": google_crc32c.value(made)}}}
    data.write_bytes(made[:-1] + b"\0")
    with pytest.raises(AirflowFailException, match="is not the file that the manifest describes"):
        publish(aggregated={"reports": reports})
    assert list(base.glob("v=*")) == []
    data.write_bytes(made)
    publish(aggregated={"reports": reports})


def test_publishing_again_is_green_and_changes_nothing(publish, base):
    first, _ = publish()
    before = {path: path.stat().st_mtime_ns for path in base.rglob("*")}
    assert publish()[0] == first
    assert {path: path.stat().st_mtime_ns for path in base.rglob("*")} == before


def test_a_training_that_began_anew_keeps_the_old_result_from_being_published(publish, base):
    with pytest.raises(AirflowFailException, match="the training has begun anew: its fence is 4, this result has 3"):
        publish(fences=(3, 4))
    assert list(base.glob("v=*")) == []


def test_an_average_of_replicas_that_began_unlike_needs_an_evaluation(publish, base):
    with pytest.raises(
        AirflowFailException, match="the replicas began with different weights, or have none in common now"
    ):
        publish(aggregated={"same_start": False})
    evaluation = {"candidates": {"average": {"mae": 1.0}}, "baselines": {}}
    result, _ = publish(aggregated={"same_start": False}, evaluation=evaluation)
    assert result["metrics"] == {"mae": 1.0}


def test_a_corrected_evaluation_reaches_what_is_published_once(publish, base):
    wrong, right = (
        {"candidates": {"average": {"mae": mae}}, "baselines": {"mean": {"mae": 3.0}}} for mae in (9.0, 1.0)
    )
    first, _ = publish(evaluation=wrong)
    manifest = base / Path(first["uri"]).name / "manifest.json"
    again, extra = publish(evaluation=right, try_number=2)
    assert again["uri"] == first["uri"]
    assert again["digest"] == extra["digest"] == json.loads(manifest.read_text())["digest"] != first["digest"]
    assert json.loads(manifest.read_text())["metrics"] == {"mae": 1.0}
    before = {path: path.stat().st_mtime_ns for path in base.rglob("*")}
    assert publish(evaluation=right, try_number=3)[0] == again
    assert {path: path.stat().st_mtime_ns for path in base.rglob("*")} == before
    with pytest.raises(AirflowFailException, match="exists"):  # the first publication, which comes late
        publish(evaluation=wrong)


def exported_model(folder, content, candidate="average"):
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(content)
    return {"candidate": candidate, "folder": str(folder), "signatures": {"serving_default": {}}}


def test_an_export_is_published_with_its_checkpoint_and_named_in_the_event(publish, base, tmp_path):
    first, extra = publish(exported=exported_model(tmp_path / "export", b"graph"))
    folder = Path(first["uri"].removeprefix("file://"))
    assert (folder / "saved_model" / "saved_model.pb").read_bytes() == b"graph"
    assert json.loads((folder / "manifest.json").read_text())["origin"]["signatures"] == {"serving_default": {}}
    assert extra["saved_model"] == f"{first['uri']}/saved_model"
    again, _ = publish(exported=exported_model(tmp_path / "corrected", b"another graph"), try_number=2)
    assert again["uri"] == first["uri"]
    assert (folder / "saved_model" / "saved_model.pb").read_bytes() == b"another graph"
    with pytest.raises(AirflowFailException, match="exists"):  # the first publication, which comes late
        publish(exported=exported_model(tmp_path / "late", b"graph"))


def test_what_was_copied_of_this_training_goes_when_it_is_published(publish, base):
    run = base / ".airflow_tf-runs" / digest("dag", "run 1")
    mine, other = run / f"train-{digest('train', length=8)}", run / f"train_more-{digest('train_more', length=8)}"
    for folder in (mine, other):
        (folder / "replica-0" / "generation-1" / "ck-1").mkdir(parents=True)
    publish()
    assert (mine.exists(), other.exists()) == (False, True)


def test_an_export_of_another_candidate_is_not_published(publish, base, tmp_path):
    exported = exported_model(tmp_path / "export", b"graph", candidate="replica-0")
    with pytest.raises(AirflowFailException, match="it was made of replica-0, and average is published"):
        publish(exported=exported)
    assert not base.exists()


def test_old_versions_are_marked_when_no_rule_keeps_them(publish, base):
    for day in (1, 2, 3):
        publish(day, keep={"last": 2})
    assert [path.parent.name[:10] for path in base.glob("v=*/_to_be_removed")] == ["v=20260101"]


def test_the_best_are_kept_by_the_metric_that_has_decided(publish, base):
    for day, mae in ((1, 2.0), (2, 1.0), (3, 3.0), (4, 4.0)):
        publish(day, keep={"best": 1}, evaluation={"candidates": {"average": {"mae": mae}}, "baselines": {}})
    marked = {path.parent.name[:10] for path in base.glob("v=*/_to_be_removed")}
    assert marked == {"v=20260101", "v=20260103"}


def test_the_best_of_what_nothing_was_measured_of_are_told_and_do_not_fail_what_is_published(publish, base, capsys):
    result, extra = publish(keep={"best": 1})
    assert (base / Path(result["uri"]).name / "_SUCCESS").exists()
    assert extra["uri"] == result["uri"]
    assert "old versions were not removed: no version has the metric" in capsys.readouterr().out


def test_rules_that_keep_nothing_are_refused_before_anything_is_published(publish, base):
    with pytest.raises(AirflowFailException, match="everything would be removed"):
        publish(keep={"last": 0})
    assert not base.exists()


def test_retention_that_fails_does_not_fail_what_is_published(publish, base, monkeypatch):
    def fail(*_arguments, **_options):
        raise module.StorageError("the name node is in safe mode")

    monkeypatch.setattr(module, "prune_versions", fail)
    result, _ = publish(keep={"last": 1})
    assert (base / Path(result["uri"]).name / "_SUCCESS").exists()
