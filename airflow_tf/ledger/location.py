"""Where a ledger may lie: on a local disk or a PostgreSQL server. SQLite's locks do not hold over a network."""

from __future__ import annotations

from pathlib import Path

import psutil
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from airflow_tf.core.errors import LedgerError, LedgerUnavailableError
from airflow_tf.ledger.engine import Database
from airflow_tf.ledger.postgres import PostgresDatabase
from airflow_tf.ledger.sqlite import SqliteDatabase

NETWORK_TYPES = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "smb3", "smbfs", "vboxsf", "virtiofs"}
    | {"fuse.cephfs", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"}
)


def filesystem_type(path: Path) -> str:
    """Return the type of the file system that ``path`` is or would be on, as the kernel names it."""
    resolved = path.resolve()
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((mounts[folder] for folder in (resolved, *resolved.parents) if folder in mounts), "unknown")


def refuse_network_filesystem(path: Path, what: str) -> None:
    """Check that ``path`` lies on a local file system.

    :raises LedgerError: if it does not.
    """
    found = filesystem_type(path)
    if found in NETWORK_TYPES:
        raise LedgerError(
            f"{what} {path} is on a network file system ({found})",
            "file locks do not exclude other hosts there, and a ledger would be damaged",
            "Set [airflow_tf] home to a folder on a local disk.",
        )


def open_database(url: str, deadline_seconds: float) -> Database:
    """Return the database that a ledger's URL names; nothing is connected yet.

    No message shows the URL, which may hold secrets, nor a part of it that could not be understood.

    :raises LedgerError: if it names no database that can hold a ledger.
    :raises LedgerUnavailableError: if the folder of a file cannot be made.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise LedgerError("ledger_url is not a database URL", "it cannot be parsed", _HOW) from None
    if parsed.drivername.partition("+")[0] == "sqlite":
        return SqliteDatabase(parsed, _file_of(parsed))
    if parsed.drivername not in {"postgresql", "postgresql+psycopg"}:
        raise LedgerError(f"ledger_url names a database of kind {parsed.drivername}", "no ledger can be there", _HOW)
    if not parsed.database:
        raise LedgerError(f"ledger_url names no database of the server {parsed.host}", todo=_HOW)
    shown = URL.create("postgresql", parsed.username, None, parsed.host, parsed.port, parsed.database)
    return PostgresDatabase(parsed, shown.render_as_string(), deadline_seconds)


def _file_of(url: URL) -> Path:
    if not url.database or not Path(url.database).is_absolute():
        raise LedgerError(f"ledger_url {url.database!r} does not name a file by its absolute path", todo=_HOW)
    path = Path(url.database)
    refuse_network_filesystem(path, "the ledger")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerUnavailableError(f"cannot make the ledger's folder {path.parent}", str(error)) from error
    return path


_HOW = (
    "Set [airflow_tf] ledger_url to something like sqlite:////var/lib/airflow/airflow_tf/ledger.db or"
    " postgresql+psycopg://user@host/database."
)
