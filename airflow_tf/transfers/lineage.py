"""What transfers tell OpenLineage; its provider calls them, so its classes are imported only then."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from airflow_tf.core.manifest import StagedInput
from airflow_tf.storage.base import Uri

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage


def dataset_names(text: str) -> list[tuple[str, str]]:
    """Return namespace and name of each URI by OpenLineage's naming: ``hdfs://host:port`` and the path."""
    uri = Uri.parse(text)
    authority = uri.authority or (socket.gethostname() if uri.scheme == "file" else "")
    return [(f"{uri.scheme}://{authority}", path) for path in uri.paths]


def staging_lineage(staged: StagedInput) -> OperatorLineage[Any, Any]:
    """Describe a staged input: its sources, of one alone also size and number of files, and where it lies here."""
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.generated.base import Dataset, InputDataset, InputDatasetFacet
    from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet

    sources = dataset_names(staged.source)
    statistics = InputStatisticsInputDatasetFacet(size=staged.total_bytes, fileCount=len(staged.files))
    facets: dict[str, InputDatasetFacet] = {"inputStatistics": statistics} if len(sources) == 1 else {}
    [(here, folder)] = dataset_names(f"file://{staged.folder}")
    return OperatorLineage(
        inputs=[InputDataset(namespace=space, name=name, inputFacets=facets) for space, name in sources],
        outputs=[Dataset(namespace=here, name=folder)],
    )


def upload_lineage(local: str, destination: str, sent_bytes: int, files: int) -> OperatorLineage[Any, Any]:
    """Describe an upload: what was sent from this host, and what the destination has got."""
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.generated.base import Dataset, OutputDataset
    from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet

    [(namespace, name)] = dataset_names(destination)
    statistics = OutputStatisticsOutputDatasetFacet(size=sent_bytes, fileCount=files)
    [(here, path)] = dataset_names(f"file://{local}")
    return OperatorLineage(
        inputs=[Dataset(namespace=here, name=path)],
        outputs=[OutputDataset(namespace=namespace, name=name, outputFacets={"outputStatistics": statistics})],
    )
