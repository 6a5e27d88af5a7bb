"""The hosts that the ledger knows, and taking one out of use before maintenance."""

from __future__ import annotations

import getpass
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence

from airflow_tf.cli.output import Row, command, confirm, print_rows
from airflow_tf.core.errors import LedgerError
from airflow_tf.devices.registry import KINDS, read_all
from airflow_tf.hooks.settings import load_settings
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.read import LedgerReader
from airflow_tf.supervisor.acquire import this_host

_NONE = "No host is registered: airflow tf hosts register"


@command
def hosts_ls(args: Namespace) -> None:
    """List the registered hosts."""
    print_rows(host_rows(LedgerReader(open_ledger(load_settings()))), args.output, none=_NONE)


@command
def hosts_register(args: Namespace) -> None:
    """Record this host and all its devices as they look now, as the first task on it would."""
    settings = load_settings()
    ledger = open_ledger(settings)
    ledger.register_host(this_host(), [reading for kind in KINDS for reading in read_all(settings, kind)])
    print_rows(_rows_of(LedgerReader(ledger), [this_host().host_id]), args.output)


@command
def hosts_drain(args: Namespace) -> None:
    """Offer no device of a host to anybody; what runs there goes on."""
    ledger = open_ledger(load_settings())
    reader = LedgerReader(ledger)
    places = _places(reader, args.host)
    if not args.yes:
        print_rows(_rows_of(reader, places), "table")
        confirm("Let no run begin on this host?", yes=False)
    ledger.drain(places[0], getpass.getuser(), args.why or "no reason given")
    print_rows(_rows_of(reader, places), args.output)


@command
def hosts_undrain(args: Namespace) -> None:
    """Take a host back into use."""
    ledger = open_ledger(load_settings())
    reader = LedgerReader(ledger)
    places = _places(reader, args.host)
    ledger.undrain(places[0])
    print_rows(_rows_of(reader, places), args.output)


def host_rows(reader: LedgerReader) -> list[Row]:
    """Return a row for every place of a host, with how many of its devices are held and by how many replicas."""
    devices = reader.devices()
    held = Counter(row.host_id for row in devices if row.holders)
    replicas = Counter(row.host_id for row in reader.reservations())
    return [
        {
            "host": row.name,
            "id": row.host_id,
            "devices": row.devices,
            "kinds": sorted({device.kind for device in devices if device.host_id == row.host_id}),
            "held": held[row.host_id],
            "replicas": replicas[row.host_id],
            "seen": row.seen,
            "drained": row.drained,
        }
        for row in reader.hosts()
    ]


def _rows_of(reader: LedgerReader, places: Sequence[str]) -> list[Row]:
    return [row for row in host_rows(reader) if row["id"] in places]


def _places(reader: LedgerReader, name: str | None) -> list[str]:
    """Return the ids of all places of the machine that is named by one of them or by its name; by default of this one.

    :raises LedgerError: if the ledger knows none of that name, or several.
    """
    rows = reader.hosts()
    if name is None:
        machines = {row.machine for row in rows if row.machine == this_host().machine}
    else:
        machines = {row.machine for row in rows if name in {row.host_id, row.name}}
    if len(machines) == 1:
        return [row.host_id for row in rows if row.machine in machines]
    why = f"{len(machines)} machines are called so" if machines else "it has never been registered"
    raise LedgerError(
        f"the ledger knows no single host {name or 'for this machine'}",
        why,
        "See 'airflow tf hosts ls'; give its id, or register it by 'airflow tf hosts register' on it.",
    )
