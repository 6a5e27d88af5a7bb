"""The plugin's entry point, loaded by every Airflow process, so it imports nothing heavy."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin


class AirflowTfPlugin(AirflowPlugin):
    """Registers airflow_tf with Airflow; operators and commands come from the provider info."""

    name = "airflow_tf"

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override] # only the API server asks, and pays
        """The read-only interface to devices and training runs."""
        from airflow_tf.web.app import make_app  # noqa: PLC0415 (only the API server asks)

        return [{"app": make_app(), "url_prefix": "/airflow_tf", "name": "airflow_tf"}]
