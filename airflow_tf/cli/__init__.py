"""Commands of ``airflow tf``; Airflow's parser calls :func:`get_cli_commands` for every command it runs."""

from __future__ import annotations

from airflow_tf.cli.definition import get_cli_commands

__all__ = ["get_cli_commands"]
