"""Buttons on a task's page: the pages where one looks on while it runs, and afterwards.

Airflow asks for a link when a task has ended; so each is also stored under its key as soon as it is known. It shows no
button for an empty address.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

from airflow_tf.core.identity import RunFolders
from airflow_tf.hooks.settings import link_address
from airflow_tf.storage.base import Uri, one_text
from airflow_tf.storage.globs import fixed_part

TRAINING_ROUTE = "tf-training-task"
"""Route of the plugin's page of a task instance."""


class TrainingLink(BaseOperatorLink):
    """The page of a replica: its attempts, curves, placement and session config."""

    name = "Training"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ANN401, ARG002 (Airflow's own)
        """Return the address below that of Airflow's own pages."""
        parts = ["dags", ti_key.dag_id, "runs", ti_key.run_id, "tasks", ti_key.task_id]
        if ti_key.map_index is not None and ti_key.map_index >= 0:
            parts += ["mapped", str(ti_key.map_index)]
        return "/".join([_airflow_address(), *(quote(part, safe="") for part in parts), "plugin", TRAINING_ROUTE])


class PlacementLink(BaseOperatorLink):
    """The placement report of a replica whose session config asks for one."""

    name = "Placement"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ANN401 (Airflow's own)
        """Return its address in the plugin's interface; there is a report when an attempt has ended."""
        if "log_device_placement" not in str(operator.session_config):
            return ""
        asked = {"run_id": ti_key.run_id, "task_id": ti_key.task_id, "replica": operator.replica}
        return f"{_airflow_address()}/airflow_tf/dags/{quote(ti_key.dag_id, safe='')}/placement?{urlencode(asked)}"


class TensorBoardLink(BaseOperatorLink):
    """The installation's TensorBoard, where ``[airflow_tf] tensorboard_url`` names one."""

    name = "TensorBoard"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ANN401, ARG002 (Airflow's own)
        """Return the option with what it asks for filled in."""
        folder = RunFolders(Path(), ti_key.dag_id, ti_key.run_id).root.name
        return filled(link_address("tensorboard_url"), dag_id=ti_key.dag_id, run_id=ti_key.run_id, folder=folder)


class HdfsBrowserLink(BaseOperatorLink):
    """Where a NameNode, or another browser of files, shows what a task reads or writes."""

    name = "HDFS"

    def __init__(self, field: str) -> None:
        self.field = field

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ANN401, ARG002 (Airflow's own)
        """Return the address of the folder; of WebHDFS it is known without an option."""
        return browser_address(one_text(getattr(operator, self.field)), link_address("hdfs_browser_url"))


def _airflow_address() -> str:
    return conf.get("api", "base_url", fallback="/").rstrip("/")


def browser_address(uri: str, option: str) -> str:
    """Return where a browser shows the first path of ``uri``, of a pattern the folder above its first wildcard."""
    parsed = Uri.parse(uri)
    path = fixed_part(parsed.path)
    if not option and parsed.scheme in {"webhdfs", "swebhdfs"}:
        option = f"{'http' if parsed.scheme == 'webhdfs' else 'https'}://{parsed.authority}/explorer.html#{{path}}"
    return "" if parsed.scheme == "file" else filled(option, path=path, authority=parsed.authority)


def filled(template: str, **values: str) -> str:
    """Return an address with ``{name}`` replaced by quoted values; other braces stay."""
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", quote(value))
    return template


def show_links(operator: Any, ti: Any) -> None:  # noqa: ANN401 (Airflow's own)
    """Store the links of a task that begins, so that its page has them while it runs."""
    links: Sequence[Any] = operator.operator_extra_links
    for link in links:
        ti.xcom_push(key=link.xcom_key, value=link.get_link(operator, ti_key=ti))
