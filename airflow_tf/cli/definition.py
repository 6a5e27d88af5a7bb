"""Names, arguments and help of the commands; what they do is imported when one is called."""

from __future__ import annotations

from typing import Any

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)

_COMMANDS = "airflow_tf.cli.commands"


def _arg(*flags: str, **options: Any) -> Arg:
    return Arg(flags, **options)  # type: ignore[no-untyped-call]


ARG_FILES = _arg("files", nargs="+", metavar="FILE", help="Declarations (*.tf.yaml)")
ARG_HDFS = _arg("--hdfs", metavar="URI", help="A path on HDFS that must be reachable, e.g. hdfs://namenode:8020/")
ARG_HDFS_CONN_ID = _arg("--hdfs-conn-id", metavar="ID", help="The connection to reach it with")
ARG_PYTHON = _arg("--python", metavar="PATH", help="The training interpreter (default: the one Airflow runs in)")
ARG_DAG = _arg("-d", "--dag", "--dag-id", dest="dag_id", metavar="DAG", help="Only runs of this DAG")
ARG_RUN = _arg("run", help="Key of a training run (or its beginning), or its run id, as 'airflow tf runs' shows them")
ARG_TIMEOUT = _arg(
    "--timeout", type=float, default=120.0, help="Seconds to wait until its processes are gone (default: 120)"
)


def get_cli_commands() -> list[CLICommand]:
    """Return the command group ``airflow tf``."""
    commands = (
        ActionCommand(
            name="doctor",
            help="Check this host: every line says ok, or failed with the remedy",
            func=lazy_load_command(f"{_COMMANDS}.doctor"),
            args=(ARG_HDFS, ARG_HDFS_CONN_ID, ARG_PYTHON, ARG_OUTPUT, ARG_VERBOSE),
        ),
        ActionCommand(
            name="validate",
            help="Show all errors of declarations with file, line and column",
            func=lazy_load_command(f"{_COMMANDS}.validate"),
            args=(ARG_FILES, ARG_OUTPUT, ARG_VERBOSE),
        ),
        ActionCommand(
            name="devices",
            help="List the devices of this host, their state and who holds them",
            func=lazy_load_command(f"{_COMMANDS}.devices"),
            args=(ARG_OUTPUT, ARG_VERBOSE),
        ),
        ActionCommand(
            name="runs",
            help="List training runs, their replicas and how they ended",
            func=lazy_load_command(f"{_COMMANDS}.runs"),
            args=(ARG_DAG, ARG_OUTPUT, ARG_VERBOSE),
        ),
        ActionCommand(
            name="cancel",
            help="Stop a training run cleanly and wait until its processes are gone",
            func=lazy_load_command(f"{_COMMANDS}.cancel"),
            args=(ARG_RUN, ARG_TIMEOUT, ARG_OUTPUT, ARG_VERBOSE),
        ),
    )
    return [GroupCommand(name="tf", help="Train TensorFlow models", subcommands=commands)]
