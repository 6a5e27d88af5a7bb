"""Where a ledger may lie: a local disk. SQLite's locks do not hold on a network file system."""

from __future__ import annotations

from pathlib import Path

import psutil
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from airflow_tf.core.errors import LedgerError

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


def sqlite_path(url: str) -> tuple[URL, Path]:
    """Return the parsed URL of a ledger and the file it names.

    :raises LedgerError: if it is no URL of a SQLite file.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise LedgerError(f"ledger_url {url!r} is not a database URL", str(error), _HOW) from error
    shown = parsed.render_as_string(hide_password=True)
    if parsed.get_backend_name() != "sqlite":
        raise LedgerError(f"ledger_url {shown} does not name a SQLite file", "no other database is supported yet", _HOW)
    if not parsed.database or parsed.database == ":memory:" or not Path(parsed.database).is_absolute():
        raise LedgerError(f"ledger_url {shown} does not name a file by its absolute path", todo=_HOW)
    return parsed, Path(parsed.database)


_HOW = "Set [airflow_tf] ledger_url to something like sqlite:////var/lib/airflow/airflow_tf/ledger.db."
