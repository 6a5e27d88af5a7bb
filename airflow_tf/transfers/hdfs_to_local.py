"""The staging task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context

from airflow_tf.core.identity import RunFolders
from airflow_tf.core.manifest import StagedInput
from airflow_tf.hooks.links import HdfsBrowserLink, show_links
from airflow_tf.hooks.settings import load_settings
from airflow_tf.hooks.staging import ensure_staged
from airflow_tf.hooks.telemetry import measured
from airflow_tf.storage.base import one_text
from airflow_tf.storage.input_check import InputCheck, check_input
from airflow_tf.storage.sharding import FILES, plan_shares
from airflow_tf.storage.staging import manifest_path
from airflow_tf.transfers.lineage import staging_lineage

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage


class HdfsToLocalOperator(BaseOperator):
    """Copy an input from HDFS to this host, verified and cached, before any device is reserved.

    Returns (XCom) ``source``, ``folder``, ``manifest``, ``files``, ``bytes``, ``copied_bytes``, ``cached_bytes``,
    ``seconds`` and ``digest``, with a check also what it counted; the list of files is in the manifest.

    :param source: URI of a file, a folder or a glob: ``hdfs://``, ``viewfs://``, ``webhdfs://``, ``swebhdfs://`` or
        ``file://``; or several of one file system, as a list or with commas between them. Each must have data.
    :param input_name: name of the input, under which training tasks find it.
    :param hdfs_conn_id: connection of type ``hdfs_native`` or ``webhdfs``; None: the URI alone.
    :param check: what the content must be, as keys of :class:`~airflow_tf.storage.input_check.InputCheck`; None: it is
        not looked at.
    :param replicas: how many replicas, those that train, share the input; if one would get nothing, it is refused here.
    :param shard: how it is to be shared: ``files``, ``lines``, ``lines_with_header`` or ``records``.
    :param require_success: refuse folders in and above which no ``_SUCCESS`` says that their job has finished.
    """

    template_fields: Sequence[str] = ("source", "hdfs_conn_id", "check")
    operator_extra_links = (HdfsBrowserLink("source"),)

    def __init__(
        self,
        *,
        source: str | Sequence[str],
        input_name: str = "data",
        hdfs_conn_id: str | None = None,
        check: dict[str, Any] | None = None,
        replicas: int = 1,
        shard: str = FILES,
        require_success: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.input_name = input_name
        self.hdfs_conn_id = hdfs_conn_id
        self.check = check
        self.replicas = replicas
        self.shard = shard
        self.require_success = require_success
        self._staged: StagedInput | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Stage into the folder of this run, then check."""
        show_links(self, context["ti"])
        with measured("stage", context) as step:
            summary = self._stage(context)
            step.tell(source=one_text(self.source))
            step.count(**{amount: summary[amount] for amount in ("files", "copied_bytes", "cached_bytes")})
            return summary

    def _stage(self, context: Context) -> dict[str, Any]:
        check = None if self.check is None else InputCheck.of(self.check)
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
            require_success=self.require_success,
        )
        plan_shares(staged, self.replicas, self.shard)  # refuses what cannot be shared
        self._staged = staged
        summary = staged.summary() | {"manifest": str(manifest_path(Path(staged.folder)))}
        if check:
            found = check_input(Path(staged.folder), [file.name for file in staged.files], check).summary()
            self.log.info("the input is as declared: %s", ", ".join(f"{key} {value}" for key, value in found.items()))
            summary |= found
        return summary

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> OperatorLineage[Any, Any] | None:  # noqa: ANN401 -- Airflow's own
        """Name the source as an input and the staged folder as an output."""
        return None if self._staged is None else staging_lineage(self._staged)
