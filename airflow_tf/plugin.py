"""The plugin's entry point: a name for now, loaded by every Airflow process, so it imports nothing heavy."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class AirflowTfPlugin(AirflowPlugin):
    """Registers airflow_tf with Airflow; operators and commands come from the provider info."""

    name = "airflow_tf"
