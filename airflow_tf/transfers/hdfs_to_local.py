"""The staging task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context

from airflow_tf.core.identity import RunFolders
from airflow_tf.hooks.settings import load_settings
from airflow_tf.hooks.staging import ensure_staged
from airflow_tf.storage.staging import manifest_path


class HdfsToLocalOperator(BaseOperator):
    """Copy an input from HDFS to this host, verified and cached, before any device is reserved.

    Returns (XCom) ``source``, ``folder``, ``manifest``, ``files``, ``bytes``, ``copied_bytes``, ``cached_bytes`` and
    ``seconds``; the list of files is in the manifest.

    :param source: URI of a file, a folder or a glob: ``hdfs://``, ``webhdfs://`` or ``file://``.
    :param input_name: name of the input, under which training tasks find it.
    :param hdfs_conn_id: connection of type ``hdfs_native`` or ``webhdfs``; None: the URI alone.
    """

    template_fields: Sequence[str] = ("source", "hdfs_conn_id")

    def __init__(
        self,
        *,
        source: str,
        input_name: str = "data",
        hdfs_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.input_name = input_name
        self.hdfs_conn_id = hdfs_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Stage into the folder of this run."""
        settings = load_settings()
        run = context["ti"]
        staged = ensure_staged(
            self.source,
            hdfs_conn_id=self.hdfs_conn_id,
            folders=RunFolders(settings.home, run.dag_id, run.run_id),
            input_name=self.input_name,
            settings=settings,
            log=self.log,
            refresh=True,
        )
        if staged.skipped:
            self.log.info("%s side files were left out, such as %s", len(staged.skipped), staged.skipped[0])
        return staged.summary() | {"manifest": str(manifest_path(Path(staged.folder)))}
