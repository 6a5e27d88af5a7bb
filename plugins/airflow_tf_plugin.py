"""Registers airflow_tf where the package lies in the plugins folder instead of being installed.

An installed package registers itself by its entry point; then this file does nothing, so that Airflow does not find
the plugin twice. Copy this file, ``.airflowignore`` and the folder ``airflow_tf`` into Airflow's plugins folder.
Commands and the connection form need the installed package.
"""

from __future__ import annotations

from importlib.metadata import entry_points

if "airflow_tf" not in entry_points(group="airflow.plugins").names:
    from airflow_tf.plugin import AirflowTfPlugin

    __all__ = ["AirflowTfPlugin"]
