"""Devices as they look now, and who holds them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live

from airflow_tf.cli.output import Row, console, make_table
from airflow_tf.core.devices import Device, Health, Host, Reading
from airflow_tf.core.ledger import Holder
from airflow_tf.core.matching import WHOLE_PERCENT
from airflow_tf.core.settings import Settings
from airflow_tf.core.units import format_bytes
from airflow_tf.devices.registry import KINDS, read_all
from airflow_tf.ledger.holdings import SUSPECT
from airflow_tf.ledger.hosts import LOST
from airflow_tf.ledger.read import DeviceRow, LedgerReader
from airflow_tf.supervisor.acquire import this_host

RESERVED = "reserved"
"""State of a device that is free to look at, but promised to a run whose replica has not started."""

SHARED = "shared"
"""State of a device of which a part is held, and the rest is free."""

NOT_OFFERED = "not offered"
"""State of a device that nobody gets now though it is free: its host is drained, or a run could not use it just now."""

_BAR_CELLS = 10


def device_rows(reader: LedgerReader, settings: Settings) -> list[Row]:
    """Return a row for every device: of this host as it looks now, of others as they last looked."""
    here = this_host()
    live = {reading.device.uuid: reading for kind in KINDS for reading in read_all(settings, kind)}
    known = [(row, live.pop(row.uuid, _lost(row)) if row.host_id == here.host_id else None) for row in reader.devices()]
    return [_row(*pair) for pair in known] + [_row(_unseen(here, reading), reading) for reading in live.values()]


def _lost(row: DeviceRow) -> Reading:
    """Return the reading of a device of this host that has just not been found."""
    device = Device(row.uuid, row.kind, row.name, row.index, visible="", memory_bytes=row.memory_bytes)
    return Reading(device, Health.UNHEALTHY, LOST)


def _unseen(host: Host, reading: Reading) -> DeviceRow:
    """Return what the ledger would know of a device that no run has looked at yet."""
    device = reading.device
    return DeviceRow(
        host=host.name,
        host_id=host.host_id,
        uuid=device.uuid,
        kind=device.kind,
        name=device.name,
        index=device.index,
        memory_bytes=device.memory_bytes,
        health=reading.health.value,
        reason=reading.reason,
        seen="",
        holders=(),
        barred="",
    )


def _row(row: DeviceRow, reading: Reading | None) -> Row:
    state, reason = (reading.health.value, reading.reason) if reading else (row.health, row.reason)
    if state == Health.FREE and row.holders:
        state = RESERVED if sum(holder.share_percent for holder in row.holders) >= WHOLE_PERCENT else SHARED
    if row.barred and state in {Health.FREE.value, SHARED}:
        state = NOT_OFFERED
    return {
        "host": row.host,
        "host_id": row.host_id,
        "device": row.uuid,
        "kind": row.kind,
        "name": row.name,
        "state": state,
        "memory_bytes": row.memory_bytes,
        "free_bytes": reading.free_bytes if reading else None,
        "utilization_percent": reading.utilization_percent if reading else None,
        "holders": [_holder(holder) for holder in row.holders],
        "reason": "; ".join(filter(None, (reason, row.barred))),
    }


def _holder(holder: Holder) -> dict[str, Any]:
    return {
        "gang": holder.gang_label,
        "replica": holder.replica,
        "state": holder.state,
        "share_percent": holder.share_percent,
        "since": holder.since,
    }


def shown_device(row: Row) -> Row:
    """Return what a table shows of a device."""
    percent = row["utilization_percent"]
    return {
        **{name: row[name] for name in ("host", "device", "kind", "name")},
        "memory": memory_bar(row["memory_bytes"], row["free_bytes"]),
        "used": "" if percent is None else f"{percent} %",
        "state": row["state"],
        "held_by": ", ".join(map(_in_words, row["holders"])),
        "since": ", ".join(holder["since"] for holder in row["holders"]),
        "reason": row["reason"],
    }


def _in_words(holder: dict[str, Any]) -> str:
    share = "" if holder["share_percent"] == WHOLE_PERCENT else f" {holder['share_percent']} %"
    state = f" ({holder['state']})" if holder["state"] == SUSPECT else ""
    return f"{holder['gang']}[{holder['replica']}]{share}{state}"


def memory_bar(total_bytes: int | None, free_bytes: int | None) -> str:
    """Draw how much memory is used; only its size where that is not known."""
    if total_bytes is None:
        return ""
    if free_bytes is None or total_bytes <= 0:
        return format_bytes(total_bytes)
    used = min(max(total_bytes - free_bytes, 0), total_bytes)
    full = -(-used * _BAR_CELLS // total_bytes)  # rounded up: any use shows
    return f"{'█' * full}{'░' * (_BAR_CELLS - full)} {format_bytes(used)} of {format_bytes(total_bytes)}"


def watch(
    look: Callable[[], list[Row]],
    interval_seconds: float,
    screen: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show the devices again and again until ^C: in place on a terminal, else one table after the other."""
    screen = screen or console()
    try:
        if not screen.is_terminal:
            while True:
                screen.print(make_table([shown_device(row) for row in look()]))
                sleep(interval_seconds)
        with Live(console=screen, auto_refresh=False) as live:
            while True:
                live.update(make_table([shown_device(row) for row in look()]), refresh=True)
                sleep(interval_seconds)
    except KeyboardInterrupt:
        return
