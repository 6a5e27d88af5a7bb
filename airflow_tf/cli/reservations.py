"""Who holds devices, and who waits for some."""

from __future__ import annotations

from airflow_tf.cli.output import Row
from airflow_tf.ledger.holdings import SUSPECT
from airflow_tf.ledger.read import LedgerReader


def reservation_rows(reader: LedgerReader) -> list[Row]:
    """Return a row for every replica that holds devices, newest reservation first."""
    return [
        {
            "reservation": row.reservation_id,
            "run": row.gang_key[:8],
            "gang": row.gang_label,
            "replica": row.replica,
            "state": SUSPECT if row.is_suspect else row.state,
            "host": row.host,
            "devices": list(row.devices),
            "share_percent": row.share_percent,
            "since": row.since,
            "supervisor_pid": row.supervisor_pid,
            "expires_in_seconds": row.expires_in_seconds,
        }
        for row in reader.reservations()
    ]


def shown_reservation(row: Row) -> Row:
    """Return what a table shows of a reservation."""
    left = row["expires_in_seconds"]
    return {
        **{name: row[name] for name in ("reservation", "run")},
        "held_by": f"{row['gang']}[{row['replica']}]",
        **{name: row[name] for name in ("state", "host", "devices")},
        "share": f"{row['share_percent']} %",
        "since": row["since"],
        "pid": row["supervisor_pid"],
        "expires_in": "" if left is None else f"{left:.0f} s",
    }


def queue_rows(reader: LedgerReader) -> list[Row]:
    """Return a row for every gang that waits, by host and in the order of its queue."""
    return [
        {
            "host": row.host,
            "position": row.position,
            "run": row.gang_key[:8],
            "gang": row.gang_label,
            "replicas": list(row.replicas),
            "wanted_devices": row.wanted,
            "priority": row.priority,
            "waited_seconds": row.waited_seconds,
            "time_limit_seconds": row.time_limit_seconds,
            "reason": row.reason,
        }
        for row in reader.queue()
    ]


def shown_waiter(row: Row) -> Row:
    """Return what a table shows of a waiting gang."""
    return {
        **{name: row[name] for name in ("host", "position", "run", "gang")},
        "wants": f"{row['wanted_devices']} for {len(row['replicas'])} replicas",
        "priority": row["priority"],
        "waited": f"{row['waited_seconds']:.0f} s",
        "because": row["reason"],
    }
