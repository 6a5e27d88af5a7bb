"""What OpenLineage is told. Its package is optional: here are classes of the same names and arguments."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from airflow_tf.transfers.hdfs_to_local import HdfsToLocalOperator
from airflow_tf.transfers.lineage import dataset_name
from airflow_tf.transfers.local_to_hdfs import LocalToHdfsOperator


@dataclass
class Dataset:
    namespace: str
    name: str
    inputFacets: dict[str, Any] = field(default_factory=dict)  # noqa: N815 -- OpenLineage's own name
    outputFacets: dict[str, Any] = field(default_factory=dict)  # noqa: N815 -- OpenLineage's own name


@dataclass
class Statistics:
    size: int
    fileCount: int  # noqa: N815 -- OpenLineage's own name


@pytest.fixture
def openlineage(monkeypatch: pytest.MonkeyPatch) -> None:
    generated = "openlineage.client.generated"
    modules: dict[str, dict[str, Any]] = {
        "openlineage": {},
        "openlineage.client": {},
        generated: {},
        f"{generated}.base": {"Dataset": Dataset, "InputDataset": Dataset, "OutputDataset": Dataset},
        f"{generated}.input_statistics_input_dataset": {"InputStatisticsInputDatasetFacet": Statistics},
        f"{generated}.output_statistics_output_dataset": {"OutputStatisticsOutputDatasetFacet": Statistics},
        "airflow.providers.openlineage": {},
        "airflow.providers.openlineage.extractors": {"OperatorLineage": SimpleNamespace},
    }
    for name, values in modules.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)


def test_names_follow_openlineage() -> None:
    assert dataset_name("hdfs://nn:8020/data/dt=2026-01-01/*.csv") == ("hdfs://nn:8020", "/data/dt=2026-01-01/*.csv")
    assert dataset_name("hdfs:///data") == ("hdfs://", "/data")
    assert dataset_name("file:///data")[0].startswith("file://")
    assert dataset_name("file:///data")[0] != "file://"


@pytest.mark.usefixtures("openlineage")
def test_a_staging_task_names_its_source_with_statistics_and_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__HOME", str(tmp_path / "home"))
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.csv").write_bytes(b"1,2\n")
    operator = HdfsToLocalOperator(task_id="stage", source=(tmp_path / "source").as_uri(), check={"format": "csv"})
    assert operator.get_openlineage_facets_on_complete(None) is None
    result = operator.execute({"ti": SimpleNamespace(dag_id="d", run_id="r")})  # type: ignore[arg-type]
    assert result["rows"] == 1
    lineage = operator.get_openlineage_facets_on_complete(None)
    assert lineage is not None
    [source], [local] = lineage.inputs, lineage.outputs
    assert source.name == str(tmp_path / "source")
    assert source.inputFacets == {"inputStatistics": Statistics(size=4, fileCount=1)}
    assert local.name == result["folder"]


@pytest.mark.usefixtures("openlineage")
def test_an_upload_names_what_it_wrote(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    operator = LocalToHdfsOperator(task_id="up", source=str(tmp_path / "x"), destination=f"file://{tmp_path}/y")
    operator.execute({})
    lineage = operator.get_openlineage_facets_on_complete(None)
    assert lineage is not None
    assert lineage.outputs[0].name == f"{tmp_path}/y"
    assert lineage.outputs[0].outputFacets == {"outputStatistics": Statistics(size=1, fileCount=1)}
