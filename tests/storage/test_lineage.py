"""What OpenLineage is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_tf.transfers.hdfs_to_local import HdfsToLocalOperator
from airflow_tf.transfers.lineage import dataset_names
from airflow_tf.transfers.local_to_hdfs import LocalToHdfsOperator
from tests.storage.storage_helpers import task_context


def test_names_follow_openlineage() -> None:
    assert dataset_names("hdfs://nn:8020/data/dt=2026-01-01/*.csv") == [("hdfs://nn:8020", "/data/dt=2026-01-01/*.csv")]
    assert dataset_names("hdfs:///data,hdfs:///more") == [("hdfs://", "/data"), ("hdfs://", "/more")]
    [(namespace, _)] = dataset_names("file:///data")
    assert namespace.startswith("file://")
    assert namespace != "file://"


def test_a_staging_task_names_its_source_with_statistics_and_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__HOME", str(tmp_path / "home"))
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.csv").write_bytes(b"1,2\n")
    operator = HdfsToLocalOperator(task_id="stage", source=(tmp_path / "source").as_uri(), check={"format": "csv"})
    assert operator.get_openlineage_facets_on_complete(None) is None
    result = operator.execute(task_context())
    assert result["rows"] == 1
    lineage = operator.get_openlineage_facets_on_complete(None)
    assert lineage is not None
    [source], [local] = lineage.inputs, lineage.outputs
    assert source.name == str(tmp_path / "source")
    statistics = source.inputFacets["inputStatistics"]
    assert (statistics.size, statistics.fileCount) == (4, 1)
    assert local.name == result["folder"]


def test_an_upload_names_what_it_wrote(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    operator = LocalToHdfsOperator(task_id="up", source=str(tmp_path / "x"), destination=f"file://{tmp_path}/y")
    operator.execute({})
    lineage = operator.get_openlineage_facets_on_complete(None)
    assert lineage is not None
    assert lineage.outputs[0].name == f"{tmp_path}/y"
    statistics = lineage.outputs[0].outputFacets["outputStatistics"]
    assert (statistics.size, statistics.fileCount) == (1, 1)
