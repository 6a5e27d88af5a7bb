"""Tables, JSON and YAML in the ways of Airflow's own commands."""

from __future__ import annotations

import functools
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

from airflow.cli.simple_table import AirflowConsole
from airflow.utils.cli import suppress_logs_and_warning
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from airflow_tf.core.errors import AirflowTfError

Command = Callable[[Namespace], None]


def command(function: Command) -> Command:
    """Make ``function`` a command: quiet unless ``--verbose``, with errors of ours as one line and exit code 1."""

    @suppress_logs_and_warning
    @providers_configuration_loaded
    @functools.wraps(function)
    def run(args: Namespace) -> None:
        try:
            function(args)
        except AirflowTfError as error:
            raise SystemExit(f"airflow tf {args.subcommand}: {error}") from error

    return run


def print_rows(rows: Sequence[dict[str, Any]], output: str) -> None:
    """Print ``rows``, all with the same keys, in the format that ``--output`` names."""
    AirflowConsole().print_as(data=list(rows), output=output)
