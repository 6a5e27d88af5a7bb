"""What the commands of ``airflow tf`` do."""

from __future__ import annotations

import getpass
import socket
from argparse import Namespace
from pathlib import Path

from airflow_tf.cli.doctor import Wishes, run_checks
from airflow_tf.cli.gangs import Canceller, device_rows, find_gangs, run_rows
from airflow_tf.cli.output import command, print_rows
from airflow_tf.hooks.settings import load_settings
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.pipeline.build import load_dag
from airflow_tf.pipeline.errors import InvalidDeclarationError


@command
def doctor(args: Namespace) -> None:
    """Check this host; exit code 1 if something failed."""
    checks = list(run_checks(Wishes(args.hdfs, args.hdfs_conn_id, args.python)))
    print_rows([check.to_row() for check in checks], args.output)
    if not all(check.ok for check in checks):
        raise SystemExit(1)


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
        load_dag(file)
    except InvalidDeclarationError as error:
        return [
            {
                "file": str(file),
                "line": problem.position.line,
                "column": problem.position.column,
                "message": problem.message,
            }
            for problem in error.problems
        ]
    return []


@command
def devices(args: Namespace) -> None:
    """List devices with their state and holder."""
    settings = load_settings()
    print_rows(device_rows(LedgerReader(open_ledger(settings)), settings), args.output)


@command
def runs(args: Namespace) -> None:
    """List the replicas of all training runs."""
    print_rows(run_rows(LedgerReader(open_ledger(load_settings())), args.dag_id), args.output)


@command
def cancel(args: Namespace) -> None:
    """Stop a training run; exit code 1 if something of it is left."""
    settings = load_settings()
    ledger = open_ledger(settings)
    gangs = find_gangs(LedgerReader(ledger), args.run)
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    rows = Canceller(ledger, settings, by).cancel(gangs, args.timeout)
    print_rows(rows, args.output)
    if any(row["left"] for row in rows):
        raise SystemExit(1)
