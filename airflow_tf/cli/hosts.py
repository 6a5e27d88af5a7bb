"""The hosts that the ledger knows, and taking one out of use before maintenance."""

from __future__ import annotations

import getpass
from argparse import Namespace
from collections import Counter

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
    print_rows([row for row in host_rows(LedgerReader(ledger)) if row["id"] == this_host().host_id], args.output)


@command
def hosts_drain(args: Namespace) -> None:
    """Offer no device of a host to anybody; what runs there goes on."""
    ledger = open_ledger(load_settings())
    reader = LedgerReader(ledger)
    host_id = _host_id(reader, args.host)
    if not args.yes:
        print_rows([row for row in host_rows(reader) if row["id"] == host_id], "table")
        confirm("Let no run begin on this host?", yes=False)
    ledger.drain(host_id, getpass.getuser(), args.why or "no reason given")
    print_rows([row for row in host_rows(reader) if row["id"] == host_id], args.output)


@command
def hosts_undrain(args: Namespace) -> None:
    """Take a host back into use."""
    ledger = open_ledger(load_settings())
    reader = LedgerReader(ledger)
    host_id = _host_id(reader, args.host)
    ledger.undrain(host_id)
    print_rows([row for row in host_rows(reader) if row["id"] == host_id], args.output)


def host_rows(reader: LedgerReader) -> list[Row]:
    """Return a row for every registered host, with how many of its devices are held and by how many replicas."""
    devices = reader.devices()
    held = Counter(row.host for row in devices if row.holders)
    replicas = Counter(row.host for row in reader.reservations())
    kinds = {host: sorted({row.kind for row in devices if row.host == host}) for host in {row.host for row in devices}}
    return [
        {
            "host": row.name,
            "id": row.host_id,
            "devices": row.devices,
            "kinds": kinds.get(row.name, []),
            "held": held[row.name],
            "replicas": replicas[row.name],
            "seen": row.seen,
            "drained": row.drained,
        }
        for row in reader.hosts()
    ]


def _host_id(reader: LedgerReader, name: str | None) -> str:
    """Return the id of a host that is named by it or by its name; by default of this one.

    :raises LedgerError: if the ledger knows none of that name, or several.
    """
    wanted = name or this_host().host_id
    found = [row for row in reader.hosts() if wanted in {row.host_id, row.name}]
    if len(found) == 1:
        return found[0].host_id
    why = f"{len(found)} hosts are called so" if found else "it has never been registered"
    raise LedgerError(
        f"the ledger knows no single host {name or 'for this machine'}",
        why,
        "See 'airflow tf hosts ls'; give its id, or register it by 'airflow tf hosts register' on it.",
    )
