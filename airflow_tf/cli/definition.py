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

from airflow_tf.core.cluster import STRATEGIES
from airflow_tf.core.errors import TemplateError
from airflow_tf.core.states import AttemptState
from airflow_tf.core.units import parse_seconds

EXAMPLES = ("sweep", "stages")
"""What ``init`` writes besides a training by one strategy."""

_MODULE = "airflow_tf.cli.commands"
_OF_CHECKPOINTS = "airflow_tf.cli.checkpoints.checkpoints"
_OF_CACHE = "airflow_tf.cli.cache.cache"
_OF_HOSTS = "airflow_tf.cli.hosts.hosts"


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


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


ARG_FILES = _arg("files", nargs="+", metavar="FILE", help="Declarations (*.tf.yaml)")
ARG_FILE = _arg("file", metavar="FILE", help="A declaration (*.tf.yaml)")
ARG_JOB = _arg("file", metavar="FILE", help="A YAML file with one TFJob")
ARG_CONF = _arg("-c", "--conf", metavar="JSON", help="Values of params, as a run is triggered with")
ARG_CONFIGS = _arg("files", nargs="+", metavar="FILE", help="Session configs (.yaml, .json, .pbtxt, or .j2 of them)")
ARG_NAME = _arg("name", metavar="NAME", help="What the new DAG and its files are called")
ARG_DAG_FOLDER = _arg("--folder", metavar="PATH", help="Where to write them (default: Airflow's DAG folder)")
ARG_STRATEGY = _arg(
    "--strategy", choices=STRATEGIES, help=f"How its replicas train together (default: {STRATEGIES[0]})"
)
ARG_EXAMPLE = _arg("--example", choices=EXAMPLES, help="Trials of which the best is published, or several trainings")
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
ARG_UNUSED_FOR = _arg(
    "--unused-for",
    type=_seconds,
    default=0.0,
    metavar="TIME",
    help="Only what was not used for so long, like 30d or 12h (default: all that no run holds)",
)
ARG_DRY_RUN = _arg("--dry-run", action="store_true", help="Only show what would be removed")
ARG_PATHS = _arg("paths", nargs="+", metavar="PATH", help="Checkpoints (their prefixes), or folders with some")
ARG_FOLDER = _arg("folder", metavar="FOLDER", help="A folder with checkpoints, or the base URI of published versions")
ARG_LISTED = _arg(
    "paths", nargs="+", metavar="PATH", help="Folders with checkpoints, or base URIs of published versions"
)
ARG_LEFT = _arg("left", metavar="LEFT", help="A checkpoint")
ARG_RIGHT = _arg("right", metavar="RIGHT", help="Another one")
ARG_TO = _arg("--to", required=True, metavar="PREFIX", help="Prefix of the checkpoint to write")
ARG_WEIGHTS = _arg("--weights", type=_numbers, metavar="N,N,…", help="How much each counts (default: all the same)")
ARG_DECAY = _arg("--decay", type=float, metavar="N", help="Exponential moving average over them, oldest first")
ARG_LEAVE_OUT = _arg("--leave-out", action="store_true", help="Leave out those with NaN or infinity, and name them")
ARG_DROP_OPTIMIZER = _arg("--drop-optimizer", action="store_true", help="Without the optimizer's state")
ARG_RULES = _arg("--rules", action="store_true", help="Show what was done with each tensor")
ARG_KEEP_LAST = _arg("--keep-last", type=_at_least(0, int), default=0, metavar="N", help="Keep the newest N")
ARG_KEEP_EVERY = _arg("--keep-every", type=_at_least(0, int), default=0, metavar="N", help="Keep every N-th")
ARG_YOUNGER_THAN = _arg(
    "--younger-than", type=_seconds, default=0.0, metavar="TIME", help="Keep what is younger, like 30d or 12h"
)

ARG_KEEP_BEST = _arg("--keep-best", type=_at_least(0, int), default=0, metavar="N", help="Keep the N best versions")
ARG_METRIC = _arg("--metric", metavar="NAME", help="The metric of the evaluation by which they are ranked")
ARG_MODE = _arg("--mode", choices=("min", "max"), default="min", help="Whether less or more is better (default: min)")
ARG_GRACE = _arg(
    "--grace",
    type=_seconds,
    default=3600.0,
    metavar="TIME",
    help="Remove versions that were marked so long ago; readers have that time to end (default: 1 hour)",
)

ARG_HOST = _arg("host", nargs="?", metavar="HOST", help="Its name or id, as 'hosts ls' shows it (default: this one)")
ARG_WHY = _arg("--why", metavar="TEXT", help="What those who wait for its devices are told")

_CHECKPOINTS: dict[str, tuple[str, tuple[Arg, ...]]] = {
    "ls": ("List the checkpoints of folders, or published versions", (ARG_LISTED, ARG_HDFS_CONN_ID, ARG_OUTPUT)),
    "verify": ("Read checkpoints whole and compare every checksum", (ARG_PATHS, ARG_OUTPUT)),
    "average": (
        "Average checkpoints into a new one, without TensorFlow",
        (ARG_PATHS, ARG_TO, ARG_WEIGHTS, ARG_DECAY, ARG_LEAVE_OUT, ARG_DROP_OPTIMIZER, ARG_RULES, ARG_OUTPUT),
    ),
    "diff": ("Show what differs between two checkpoints", (ARG_LEFT, ARG_RIGHT, ARG_OUTPUT)),
    "prune": (
        "Remove the checkpoints of a folder, or the published versions, that no rule keeps",
        (
            ARG_FOLDER,
            ARG_KEEP_LAST,
            ARG_KEEP_EVERY,
            ARG_YOUNGER_THAN,
            ARG_KEEP_BEST,
            ARG_METRIC,
            ARG_MODE,
            ARG_GRACE,
            ARG_HDFS_CONN_ID,
            ARG_DRY_RUN,
            ARG_YES,
            ARG_OUTPUT,
        ),
    ),
}
"""As ``_COMMANDS``, of the group ``checkpoints``; ``checkpoints_<name>`` in ``cli.checkpoints`` does it."""

_CACHE: dict[str, tuple[str, tuple[Arg, ...]]] = {
    "ls": ("List the files in the staging cache of this host", (ARG_OUTPUT,)),
    "verify": ("Read all of them, compare their checksums, remove damaged ones", (ARG_OUTPUT,)),
    "prune": (
        "Remove files that no run holds",
        (ARG_UNUSED_FOR, ARG_DRY_RUN, ARG_YES, ARG_OUTPUT),
    ),
}
"""As ``_COMMANDS``, of the group ``cache``; ``cache_<name>`` in ``cli.cache`` does it."""

_HOSTS: dict[str, tuple[str, tuple[Arg, ...]]] = {
    "ls": ("List the hosts that the ledger knows, what they have and what is held there", (ARG_OUTPUT,)),
    "register": ("Record this host and its devices, as the first task on it does", (ARG_OUTPUT,)),
    "drain": (
        "Let no run begin on a host, before its maintenance; what runs there goes on",
        (ARG_HOST, ARG_WHY, ARG_YES, ARG_OUTPUT),
    ),
    "undrain": ("Take a drained host back into use", (ARG_HOST, ARG_OUTPUT)),
}
"""As ``_COMMANDS``, of the group ``hosts``; ``hosts_<name>`` in ``cli.hosts`` does it."""

_COMMANDS: dict[str, tuple[str, tuple[Arg, ...]]] = {
    "doctor": (
        "Check this host: every line says ok, or failed with the remedy",
        (ARG_HDFS, ARG_HDFS_CONN_ID, ARG_PYTHON, ARG_OUTPUT),
    ),
    "init": (
        "Write a declaration, a program and data that train at once, by any strategy",
        (ARG_NAME, ARG_STRATEGY, ARG_EXAMPLE, ARG_DAG_FOLDER),
    ),
    "validate": (
        "Show all errors of declarations with file, line and column",
        (ARG_FILES, ARG_OUTPUT),
    ),
    "schema": (
        "Print the JSON Schema of declarations, for editors",
        (),
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


_PLAN = (
    "airflow_tf.cli.plan.plan",
    "plan",
    "Show what a run would do: inputs, devices, cluster, session config, destinations, problems",
    (ARG_FILE, ARG_CONF, ARG_OUTPUT),
)
_TFJOB = (
    "airflow_tf.cli.tfjob.import_tfjob",
    "tfjob",
    "Print a Kubeflow TFJob as a declaration, with all that has no counterpart",
    (ARG_JOB,),
)
_SESSION_CONFIG = (
    "airflow_tf.cli.session_config.session_config",
    "session-config",
    "Show what v1, TF2 and servers make of session configs, and why a field is refused",
    (ARG_CONFIGS, ARG_OUTPUT),
)


def get_cli_commands() -> list[CLICommand]:
    """Return the command group ``airflow tf``."""
    commands = [_command(f"{_MODULE}.{name}", name, *rest) for name, rest in _COMMANDS.items()]
    checkpoints = [_command(f"{_OF_CHECKPOINTS}_{name}", name, *rest) for name, rest in _CHECKPOINTS.items()]
    group = GroupCommand(
        name="checkpoints", help="List, check, average and compare checkpoints", subcommands=checkpoints
    )
    cached = [_command(f"{_OF_CACHE}_{name}", name, *rest) for name, rest in _CACHE.items()]
    cache = GroupCommand(name="cache", help="List, check and empty the staging cache", subcommands=cached)
    known = [_command(f"{_OF_HOSTS}_{name}", name, *rest) for name, rest in _HOSTS.items()]
    hosts = GroupCommand(name="hosts", help="List hosts, and take them out of use", subcommands=known)
    importing = GroupCommand(
        name="import", help="Make a declaration of a job for another product", subcommands=[_command(*_TFJOB)]
    )
    return [
        GroupCommand(
            name="tf",
            help="Train TensorFlow models",
            subcommands=[*commands, _command(*_PLAN), _command(*_SESSION_CONFIG), group, cache, hosts, importing],
        )
    ]


def _command(function: str, name: str, text: str, args: tuple[Arg, ...]) -> ActionCommand:
    return ActionCommand(name=name, help=text, func=lazy_load_command(function), args=(*args, ARG_VERBOSE))
