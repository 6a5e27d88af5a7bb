"""What the commands of ``airflow tf`` do."""

from __future__ import annotations

import getpass
import json
import shlex
import socket
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from airflow.configuration import conf

from airflow_tf.cli.cancel import Canceller
from airflow_tf.cli.devices import device_rows, shown_device, watch
from airflow_tf.cli.doctor import Wishes, run_checks
from airflow_tf.cli.init import scaffold
from airflow_tf.cli.logs import LogReader, Selection
from airflow_tf.cli.output import command, confirm, print_rows
from airflow_tf.cli.prune import FAILED, Pruner, shown_pruned
from airflow_tf.cli.reservations import queue_rows, reservation_rows, shown_reservation, shown_waiter
from airflow_tf.cli.runs import find_gangs, run_rows, shown_run
from airflow_tf.core.cluster import STRATEGIES
from airflow_tf.core.errors import DeclarationError
from airflow_tf.hooks.settings import load_settings
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.pipeline.build import build_dag
from airflow_tf.pipeline.declaration import load_declaration
from airflow_tf.pipeline.entrypoints import missing_functions
from airflow_tf.pipeline.errors import InvalidDeclarationError, Problem
from airflow_tf.pipeline.schema import declaration_schema


@command
def doctor(args: Namespace) -> None:
    """Check this host; exit code 1 if something failed."""
    checks = []
    for check in run_checks(Wishes(args.hdfs, args.hdfs_conn_id, args.python)):
        checks.append(check)
        if args.output == "table":  # as they come: some take seconds
            print(check.to_line(), flush=True)  # noqa: T201
    if args.output != "table":
        print_rows([check.to_row() for check in checks], args.output)
    if not all(check.ok for check in checks):
        raise SystemExit(1)


@command
def init(args: Namespace) -> None:
    """Write the files of a first DAG and say what to do with them."""
    if args.strategy and args.example:
        why = "its replicas are independent"
        raise DeclarationError(
            f"the example {args.example} has its strategy", why, "Leave --strategy or --example away."
        )
    folder = Path(args.folder or conf.get("core", "dags_folder"))
    if not args.folder:
        folder.mkdir(parents=True, exist_ok=True)  # a new installation has named it, but not made it
    for path in scaffold(args.name, folder, args.example or args.strategy or STRATEGIES[0]):
        print(f"wrote {path}")  # noqa: T201
    print(f"Now: airflow tf plan {shlex.quote(f'{folder / args.name}.tf.yaml')}, then: airflow dags test {args.name}")  # noqa: T201


@command
def schema(_args: Namespace) -> None:
    """Print the JSON Schema of declarations."""
    print(json.dumps(declaration_schema(), indent=1))  # noqa: T201


@command
def validate(args: Namespace) -> None:
    """Check declarations; print every problem as file:line:column; exit code 1 if there is one."""
    rows = [row for name in args.files for row in _problems(Path(name))]
    if args.output != "table":
        print_rows(rows, args.output)
    for row in rows if args.output == "table" else ():
        print("{file}:{line}:{column}: {message}".format_map(row))  # noqa: T201  the form that editors make a link of
    if rows:
        raise SystemExit(1)
    if args.output == "table":
        print(f"{len(args.files)} valid")  # noqa: T201


def _problems(file: Path) -> list[dict[str, str | int]]:
    try:
        loaded = load_declaration(file)
        build_dag(loaded)
        problems: Sequence[Problem] = loaded.told(missing_functions)
    except InvalidDeclarationError as error:
        problems = error.problems
    return [
        {
            "file": str(problem.position.file or file),
            "line": problem.position.line,
            "column": problem.position.column,
            "message": problem.message,
        }
        for problem in problems
    ]


@command
def devices(args: Namespace) -> None:
    """List devices with their state and holders."""
    settings = load_settings()
    reader = LedgerReader(open_ledger(settings))
    if not args.watch:
        print_rows(device_rows(reader, settings), args.output, shown_device)
    elif args.output == "table":
        watch(lambda: device_rows(reader, settings), args.interval)
    else:
        raise DeclarationError("--watch shows a table", todo="Leave --output away.")


@command
def runs(args: Namespace) -> None:
    """List the replicas of training runs."""
    reader = LedgerReader(open_ledger(load_settings()))
    print_rows(run_rows(reader, args.dag_id, state=args.state, limit=args.limit), args.output, shown_run)


@command
def logs(args: Namespace) -> None:
    """Print the output of a run's replicas."""
    reader = LedgerReader(open_ledger(load_settings()))
    gangs = [gang.key for gang in find_gangs(reader, args.run)]
    wanted = Selection(args.replica, args.attempt, args.lines)
    shown = LogReader(reader, gangs, wanted, lambda line: print(line, flush=args.follow))  # noqa: T201
    if args.follow:
        shown.follow()
    else:
        shown.show()


@command
def reservations(args: Namespace) -> None:
    """List who holds devices, or who waits for some, or take a reservation away."""
    ledger = open_ledger(load_settings())
    reader = LedgerReader(ledger)
    if args.release is not None:
        found = [row for row in reservation_rows(reader) if row["reservation"] == args.release]
        if not args.yes:
            print_rows(found, "table", shown_reservation)
            confirm(f"Take reservation {args.release} away and end its {len(found)} replicas?", yes=False)
        count = ledger.release_by_hand(args.release, _who())
        print_rows([{"reservation": args.release, "replicas": count, "result": "released"}], args.output)
    elif args.queue:
        print_rows(queue_rows(reader), args.output, shown_waiter, none="Nobody waits")
    else:
        print_rows(reservation_rows(reader), args.output, shown_reservation, none="Nobody holds a device")


@command
def cancel(args: Namespace) -> None:
    """Stop a training run; exit code 1 if something of it is left."""
    settings = load_settings()
    ledger = open_ledger(settings)
    gangs = find_gangs(LedgerReader(ledger), args.run)
    rows = Canceller(ledger, settings, _who()).cancel(gangs, args.timeout, force=args.force)
    print_rows(rows, args.output)
    if any(row["left"] for row in rows):
        raise SystemExit(1)


@command
def prune(args: Namespace) -> None:
    """Remove what was not used for long; exit code 1 if something could not be removed."""
    settings = load_settings()
    seconds = settings.retention_seconds if args.older_than is None else args.older_than
    pruner = Pruner(open_ledger(settings), settings, seconds)
    if not args.dry_run and not args.yes:
        print_rows(pruner.plan(), "table", shown_pruned)
        confirm("Remove all this?", yes=False)
    rows = pruner.plan() if args.dry_run else pruner.prune()
    print_rows(rows, args.output, shown_pruned)
    if any(row["result"] == FAILED for row in rows):
        raise SystemExit(1)


def _who() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"
