"""The way back: a file or folder of this host, written to HDFS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context

from airflow_tf.core.units import parse_bytes, parse_whole
from airflow_tf.hooks.hdfs import HdfsHook
from airflow_tf.hooks.links import HdfsBrowserLink
from airflow_tf.storage.client import upload
from airflow_tf.transfers.lineage import upload_lineage

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage


class LocalToHdfsOperator(BaseOperator):
    """Write a local file or folder to HDFS under a temporary name, then rename it: readers see nothing or the whole.

    Returns (XCom) ``destination``, ``files`` and ``bytes``.

    :param source: path on this host; a folder is sent with all below it.
    :param destination: URI that the file or folder gets: ``hdfs://``, ``webhdfs://`` or ``file://``.
    :param hdfs_conn_id: connection of type ``hdfs_native`` or ``webhdfs``; None: the URI alone.
    :param overwrite: replace what is there; otherwise an existing destination is refused.
    :param replication: number of replicas of each block; None: as the cluster is configured.
    :param block_size: size of the blocks, like ``256MiB``; None: as the cluster is configured.
    """

    template_fields: Sequence[str] = ("source", "destination", "hdfs_conn_id", "replication", "block_size")
    operator_extra_links = (HdfsBrowserLink("destination"),)

    def __init__(
        self,
        *,
        source: str,
        destination: str,
        hdfs_conn_id: str | None = None,
        overwrite: bool = False,
        replication: int | str | None = None,
        block_size: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.destination = destination
        self.hdfs_conn_id = hdfs_conn_id
        self.overwrite = overwrite
        self.replication = replication
        self.block_size = block_size
        self._sent: dict[str, Any] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Upload."""
        del context
        options = replace(
            HdfsHook(self.hdfs_conn_id).storage_options(self.destination),
            replication=None if self.replication is None else parse_whole(self.replication),
            block_bytes=None if self.block_size is None else parse_bytes(self.block_size),
        )
        self._sent = upload(
            Path(self.source), self.destination, options=options, overwrite=self.overwrite, on_progress=self.log.info
        )
        return self._sent

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> OperatorLineage[Any, Any] | None:  # noqa: ANN401 -- Airflow's own
        """Name the local path as an input and the destination as an output."""
        if self._sent is None:
            return None
        return upload_lineage(
            str(Path(self.source).absolute()), self._sent["destination"], self._sent["bytes"], self._sent["files"]
        )
