"""What ``airflow tf checkpoints`` does with the versions published below a base URI; asks no database."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime

from airflow_tf.cli.output import Row, confirm, print_rows
from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.retention import Keep
from airflow_tf.hooks.hdfs import HdfsHook
from airflow_tf.storage.client import list_versions, prune_versions


def are_uris(paths: Sequence[str]) -> bool:
    """Tell whether ``paths`` are URIs.

    :raises CheckpointError: if only some of them are.
    """
    found = ["://" in path for path in paths]
    if any(found) and not all(found):
        raise CheckpointError("folders and URIs cannot be listed together", todo="Name them in two commands.")
    return any(found)


def show_versions(args: Namespace) -> None:
    """List the versions below ``args.paths``."""
    rows = [
        {"base": base} | row
        for base in args.paths
        for row in list_versions(base, options=HdfsHook(args.hdfs_conn_id).storage_options(base))
    ]
    print_rows([_row(row) for row in rows], args.output, _shown, none="No version is published there")


def remove_versions(args: Namespace) -> None:
    """Mark the versions below ``args.folder`` that no rule keeps, and remove those marked before."""
    rules = Keep(
        last=args.keep_last,
        best=args.keep_best,
        every=args.keep_every,
        younger_than_seconds=args.younger_than,
        mode=args.mode,
    )
    if args.keep_best and not args.metric:
        raise CheckpointError(
            "--keep-best needs the metric that ranks", todo="Give --metric, and --mode if more is better."
        )

    def call(*, dry_run: bool) -> list[Row]:
        return prune_versions(
            args.folder,
            options=HdfsHook(args.hdfs_conn_id).storage_options(args.folder),
            keep=rules,
            metric=args.metric,
            on_progress=lambda _text: None,
            grace_seconds=args.grace,
            dry_run=dry_run,
        )

    if args.dry_run or not args.yes:
        planned = [row | {"result": _WOULD.get(row["result"], row["result"])} for row in call(dry_run=True)]
        print_rows(planned, args.output if args.dry_run else "table", none="No version is published there")
        if args.dry_run:
            return
        confirm("Do all this?", yes=False)
    print_rows(call(dry_run=False), args.output, none="No version is published there")


_WOULD = {"marked": "would be marked", "removed": "would be removed"}


def _row(version: Row) -> Row:
    return version | {"published": datetime.fromtimestamp(version["published"], UTC).isoformat(timespec="seconds")}


def _shown(row: Row) -> Row:
    metrics = ", ".join(f"{name}={value:g}" for name, value in sorted(row["metrics"].items()))
    return row | {"metrics": metrics}
