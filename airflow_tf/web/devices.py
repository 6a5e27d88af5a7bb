"""The devices page: what the commands show of devices, with as much of the holders as the user may see."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_tf.ledger.holdings import SUSPECT
from airflow_tf.ledger.read import HostRow, QueueRow, ReservationRow
from airflow_tf.web.models import DeviceModel, DevicesPage, Gang, Holder, HostModel, Waiter

_DAG_OF_LABEL = re.compile(r"([\w.-]+) / .+? / ")
"""The DAG's id in each label of a gang (:attr:`airflow_tf.core.identity.GangKey.label`) in a text."""


def devices_page(
    hosts: Iterable[HostRow],
    devices: Iterable[Mapping[str, Any]],
    reservations: Sequence[ReservationRow],
    queue: Sequence[QueueRow],
    readable: set[str],
) -> DevicesPage:
    """Return the page for a user who may read the DAGs ``readable``; of others it says only that they hold or wait.

    :param devices: rows of :func:`airflow_tf.cli.devices.device_rows`.
    """
    holders: dict[tuple[str, str], list[Holder]] = {}
    for row in reservations:
        for uuid in row.devices:
            holders.setdefault((row.host_id, uuid), []).append(_holder(row, readable))
    return DevicesPage(
        hosts=[HostModel(name=row.name, seen=row.seen, devices=row.devices) for row in hosts],
        devices=[_device(row, holders.get((row["host_id"], row["device"]), []), readable) for row in devices],
        queue=[_waiter(row, readable) for row in queue],
    )


def _gang(row: ReservationRow | QueueRow, readable: set[str]) -> Gang:
    if row.dag_id not in readable:
        return Gang()
    return Gang(dag_id=row.dag_id, run_id=row.run_id, task_id=row.task_id)


def _holder(row: ReservationRow, readable: set[str]) -> Holder:
    return Holder(
        gang=_gang(row, readable),
        replica=row.replica,
        state=SUSPECT if row.is_suspect else row.state,
        share_percent=row.share_percent,
        since=row.since,
    )


def _device(row: Mapping[str, Any], holders: list[Holder], readable: set[str]) -> DeviceModel:
    names = ("host", "kind", "name", "state", "memory_bytes", "free_bytes", "utilization_percent")
    return DeviceModel(
        **{name: row[name] for name in names},
        uuid=row["device"],
        reason=_unless_hidden(readable, row["reason"]),
        holders=holders,
    )


def _waiter(row: QueueRow, readable: set[str]) -> Waiter:
    return Waiter(
        host=row.host,
        position=row.position,
        gang=_gang(row, readable),
        replicas=len(row.replicas),
        wanted=row.wanted,
        priority=row.priority,
        waited_seconds=row.waited_seconds,
        reason=_unless_hidden(readable, row.reason),
    )


def _unless_hidden(readable: set[str], reason: str) -> str:
    """Return a reason unless it names a gang of a DAG that the user may not read.

    It was written a while ago: that gang may hold and wait for nothing any more, or be gone from the ledger.
    """
    return reason if readable.issuperset(_DAG_OF_LABEL.findall(reason)) else ""
