"""What transfers tell OpenLineage; its provider calls them, so its classes are imported only then."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from airflow_tf.core.manifest import StagedInput
from airflow_tf.storage.base import Uri

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage


def dataset_name(uri: str) -> tuple[str, str]:
    """Return namespace and name of a URI by OpenLineage's naming: ``hdfs://host:port`` and the path."""
    parsed = Uri.parse(uri)
    authority = parsed.authority or (socket.gethostname() if parsed.scheme == "file" else "")
    return f"{parsed.scheme}://{authority}", parsed.path


def staging_lineage(staged: StagedInput) -> OperatorLineage[Any, Any]:
    """Describe a staged input: its source with size and number of files, and where it lies on this host."""
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.generated.base import Dataset, InputDataset
    from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet

    namespace, name = dataset_name(staged.source)
    statistics = InputStatisticsInputDatasetFacet(size=staged.total_bytes, fileCount=len(staged.files))
    here, folder = dataset_name(f"file://{staged.folder}")
    return OperatorLineage(
        inputs=[InputDataset(namespace=namespace, name=name, inputFacets={"inputStatistics": statistics})],
        outputs=[Dataset(namespace=here, name=folder)],
    )


def upload_lineage(local: str, destination: str, sent_bytes: int, files: int) -> OperatorLineage[Any, Any]:
    """Describe an upload: what was sent from this host, and what the destination has got."""
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.generated.base import Dataset, OutputDataset
    from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet

    namespace, name = dataset_name(destination)
    statistics = OutputStatisticsOutputDatasetFacet(size=sent_bytes, fileCount=files)
    here, path = dataset_name(f"file://{local}")
    return OperatorLineage(
        inputs=[Dataset(namespace=here, name=path)],
        outputs=[OutputDataset(namespace=namespace, name=name, outputFacets={"outputStatistics": statistics})],
    )
