"""What the commands of ``airflow tf cache`` do with the staging cache of this user on this host."""

from __future__ import annotations

import time
from argparse import Namespace
from datetime import UTC, datetime

from airflow_tf.cli.output import Row, command, confirm, print_rows
from airflow_tf.core.units import format_bytes
from airflow_tf.hooks.settings import load_settings
from airflow_tf.storage.cache_entries import CacheEntry, cache_entries, checksum, removable

_SHOWN_DIGITS = 12


@command
def cache_ls(args: Namespace) -> None:
    """List what is cached, the last used first."""
    found = sorted(cache_entries(load_settings().cache_dir), key=lambda entry: -entry.used_at)
    print_rows([_row(entry) for entry in found], args.output, _shown)


@command
def cache_verify(args: Namespace) -> None:
    """Read all entries and compare their checksums; remove damaged ones; exit code 1 if there was one."""
    rows = [_verified(entry) for entry in cache_entries(load_settings().cache_dir)]
    print_rows(rows, args.output, _shown)
    if any(row["result"] == "damaged" for row in rows):
        raise SystemExit(1)


@command
def cache_prune(args: Namespace) -> None:
    """Remove what no run holds, if it was not used for long."""
    folder, before = load_settings().cache_dir, time.time() - args.unused_for
    found = removable(cache_entries(folder), before)
    if args.dry_run:
        print_rows([_row(entry) | {"result": "would be removed"} for entry in found], args.output, _shown)
        return
    if found:
        size = format_bytes(sum(entry.size for entry in found))
        confirm(f"Remove {len(found)} files, {size}, from {folder}?", yes=args.yes)
    for entry in found:
        entry.path.unlink(missing_ok=True)
    print_rows([_row(entry) | {"result": "removed"} for entry in found], args.output, _shown)


def _verified(entry: CacheEntry) -> Row:
    try:
        whole = checksum(entry.path, lambda: None) == entry.crc32c
    except FileNotFoundError:
        return _row(entry) | {"result": "removed meanwhile"}
    if not whole:
        entry.path.unlink(missing_ok=True)  # runs that hold it keep their own link
    return _row(entry) | {"result": "whole" if whole else "damaged"}


def _row(entry: CacheEntry) -> Row:
    return {
        "key": entry.key,
        "bytes": entry.size,
        "last_used": datetime.fromtimestamp(entry.used_at, UTC).isoformat(timespec="seconds"),
        "runs": entry.holders,
        "crc32c": f"{entry.crc32c:08x}",
    }


def _shown(row: Row) -> Row:
    size = format_bytes(row.pop("bytes"))
    return row | {"key": row["key"][:_SHOWN_DIGITS], "size": size}
