"""Names, arguments and help of the commands; what they do is imported when one is called."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
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

from airflow_tf.core.errors import TemplateError
from airflow_tf.core.states import AttemptState
from airflow_tf.core.units import parse_seconds

_MODULE = "airflow_tf.cli.commands"


def _arg(*flags: str, **options: Any) -> Arg:
    return Arg(flags, **options)  # type: ignore[no-untyped-call]


def _seconds(text: str) -> float:
    """Read a duration as an argument's type: a wrong one is a usage error, code 2."""
    try:
        return parse_seconds(text)
    except TemplateError as error:
        raise ArgumentTypeError(str(error)) from error


def _at_least(least: float, number: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = number(text)
        if value < least:
            raise ArgumentTypeError(f"{text} is less than {least}")
        return value

    parse.__name__ = "number"  # argparse says "invalid number value"
    return parse


ARG_FILES = _arg("files", nargs="+", metavar="FILE", help="Declarations (*.tf.yaml)")
ARG_HDFS = _arg("--hdfs", metavar="URI", help="A path on HDFS that must be reachable, e.g. hdfs://namenode:8020/")
ARG_HDFS_CONN_ID = _arg("--hdfs-conn-id", metavar="ID", help="The connection to reach it with")
ARG_PYTHON = _arg("--python", metavar="PATH", help="The training interpreter (default: the one Airflow runs in)")
ARG_DAG = _arg("-d", "--dag", "--dag-id", dest="dag_id", metavar="DAG", help="Only runs of this DAG")
ARG_RUN = _arg("run", help="Key of a training run (or its beginning), or its run id, as 'airflow tf runs' shows them")
ARG_TIMEOUT = _arg(
    "--timeout",
    type=_seconds,
    default=120.0,
    metavar="TIME",
    help="How long to wait until its processes are gone, like 90 or 5m (default: 120 seconds)",
)
ARG_FORCE = _arg("--force", action="store_true", help="After that time, kill its supervisor and all its processes")
ARG_LIMIT = _arg("--limit", type=_at_least(1, int), default=20, metavar="N", help="So many runs (default: 20)")
ARG_STATE = _arg(
    "--state",
    choices=("waiting", *(state.value for state in AttemptState)),
    help="Only replicas that are in this state",
)
ARG_WATCH = _arg("--watch", action="store_true", help="Show them again and again until ^C")
ARG_INTERVAL = _arg(
    "--interval", type=_at_least(0.1, _seconds), default=2.0, metavar="TIME", help="Time between looks (default: 2 s)"
)
ARG_QUEUE = _arg("--queue", action="store_true", help="List the gangs that wait for devices instead")
ARG_RELEASE = _arg("--release", type=int, metavar="ID", help="Take this reservation away; its processes are ended")
ARG_YES = _arg("-y", "--yes", action="store_true", help="Do not ask")
ARG_REPLICA = _arg("--replica", type=_at_least(0, int), metavar="N", help="Only this replica")
ARG_ATTEMPT = _arg("--attempt", type=_at_least(1, int), metavar="N", help="This attempt (default: the last one)")
ARG_FOLLOW = _arg("-f", "--follow", action="store_true", help="Go on until the replicas have ended")
ARG_LINES = _arg("-n", "--lines", type=_at_least(0, int), metavar="N", help="Only the last lines of each replica")
ARG_OLDER_THAN = _arg(
    "--older-than",
    type=_seconds,
    metavar="TIME",
    help="Remove what was last used so long ago, like 30d or 12h (default: the option retention_seconds)",
)
ARG_DRY_RUN = _arg("--dry-run", action="store_true", help="Only show what would be removed")


_COMMANDS: dict[str, tuple[str, tuple[Arg, ...]]] = {
    "doctor": (
        "Check this host: every line says ok, or failed with the remedy",
        (ARG_HDFS, ARG_HDFS_CONN_ID, ARG_PYTHON, ARG_OUTPUT),
    ),
    "validate": (
        "Show all errors of declarations with file, line and column",
        (ARG_FILES, ARG_OUTPUT),
    ),
    "devices": (
        "List the devices of this host, their state and who holds them",
        (ARG_WATCH, ARG_INTERVAL, ARG_OUTPUT),
    ),
    "runs": (
        "List training runs, their replicas and how they ended",
        (ARG_DAG, ARG_STATE, ARG_LIMIT, ARG_OUTPUT),
    ),
    "logs": (
        "Show the output of a training run's replicas",
        (ARG_RUN, ARG_REPLICA, ARG_ATTEMPT, ARG_FOLLOW, ARG_LINES),
    ),
    "reservations": (
        "List who holds devices and who waits for some; take a reservation away",
        (ARG_QUEUE, ARG_RELEASE, ARG_YES, ARG_OUTPUT),
    ),
    "cancel": (
        "Stop a training run cleanly and wait until its processes are gone",
        (ARG_RUN, ARG_TIMEOUT, ARG_FORCE, ARG_OUTPUT),
    ),
    "prune": (
        "Remove run folders and rows of the ledger that were not used for long",
        (ARG_OLDER_THAN, ARG_DRY_RUN, ARG_YES, ARG_OUTPUT),
    ),
}
"""Name of a command -> its help and its arguments; the function of that name in ``commands`` does it."""


def get_cli_commands() -> list[CLICommand]:
    """Return the command group ``airflow tf``."""
    commands = [
        ActionCommand(name=name, help=text, func=lazy_load_command(f"{_MODULE}.{name}"), args=(*args, ARG_VERBOSE))
        for name, (text, args) in _COMMANDS.items()
    ]
    return [GroupCommand(name="tf", help="Train TensorFlow models", subcommands=commands)]
