"""Settings from Airflow's configuration section ``[airflow_tf]``."""

from __future__ import annotations

import json
import os
from pathlib import Path

from airflow.configuration import AIRFLOW_HOME, conf

from airflow_tf.core.devices import Device
from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.settings import Settings
from airflow_tf.core.units import format_bytes, parse_bytes, parse_seconds

SECTION = "airflow_tf"
DEFAULT_LOCK_DIR = "/run/lock/airflow_tf"
OWN_SCOPES = ("auto", "off")
_LEAST_OUTPUT_BYTES = 2**20


def load_settings() -> Settings:
    """Read the settings anew; every option has a default.

    :raises DeclarationError: if an option cannot be read.
    """
    home = Path(conf.get(SECTION, "home", fallback="") or Path(AIRFLOW_HOME) / "airflow_tf").expanduser().absolute()
    return Settings(
        home=home,
        # A command's output (ledger_url_cmd) comes with its line end.
        ledger_url=conf.get(SECTION, "ledger_url", fallback="").strip() or f"sqlite:///{home / 'ledger.db'}",
        lock_dir=Path(conf.get(SECTION, "lock_dir", fallback="") or DEFAULT_LOCK_DIR),
        cpu_slots=_cpu_slots(conf.get(SECTION, "cpu_slots", fallback="") or str(os.cpu_count() or 1)),
        static_devices=_static_devices(conf.get(SECTION, "static_devices", fallback="")),
        cache_bytes=parse_bytes(conf.get(SECTION, "cache_bytes", fallback="") or "100GiB"),
        reservation_seconds=parse_seconds(conf.get(SECTION, "reservation_seconds", fallback="") or 300),
        retention_seconds=parse_seconds(conf.get(SECTION, "retention_seconds", fallback="") or "30d"),
        output_bytes=_output_bytes(conf.get(SECTION, "output_bytes", fallback="") or "1GiB"),
        own_scope=_own_scope(conf.get(SECTION, "own_scope", fallback="") or "auto"),
        tensorboard_url=link_address("tensorboard_url"),
        hdfs_browser_url=link_address("hdfs_browser_url"),
        callbacks=callback_packages(),
    )


def callback_packages() -> tuple[str, ...]:
    """Read ``callbacks`` alone: the DAG processor, which asks, needs no other setting, and no secret of the ledger."""
    names = conf.get(SECTION, "callbacks", fallback="").split(",")
    return tuple(name.strip() for name in names if name.strip())


def callback_folders() -> tuple[Path, ...]:
    """Return the folders whose functions a declaration may have called: those of DAGs and of plugins."""
    return tuple(
        Path(folder)
        for option in ("dags_folder", "plugins_folder")
        if (folder := conf.get("core", option, fallback=""))
    )


def _cpu_slots(text: str) -> int:
    if not text.strip().isdecimal() or not int(text):
        raise DeclarationError(f"[{SECTION}] cpu_slots is {text!r}", todo="Give a whole number, 1 or more.")
    return int(text)


def _output_bytes(text: str) -> int:
    count = parse_bytes(text)
    if count < _LEAST_OUTPUT_BYTES:
        least = format_bytes(_LEAST_OUTPUT_BYTES)
        raise DeclarationError(f"[{SECTION}] output_bytes is {text}", todo=f"Allow at least {least} for an output.")
    return count


def _own_scope(text: str) -> str:
    if text not in OWN_SCOPES:
        raise DeclarationError(f"[{SECTION}] own_scope is {text!r}", todo=f"Use one of: {', '.join(OWN_SCOPES)}.")
    return text


def link_address(option: str) -> str:
    """Read the address of a link alone: each task asks for some, and the ledger's URL may be a command's output.

    :raises DeclarationError: if it has another scheme: a link could be a script.
    """
    text = conf.get(SECTION, option, fallback="").strip()
    if text and not text.startswith(("http://", "https://")):
        raise DeclarationError(f"[{SECTION}] {option} is {text!r}", todo="Give an address with http:// or https://.")
    return text


def _static_devices(text: str) -> tuple[Device, ...]:
    """Parse ``static_devices``: a JSON list of ``{"uuid", "name", "visible", "memory"}``; only uuid is required."""
    if not text.strip():
        return ()
    try:
        rows = json.loads(text)
        return tuple(
            Device(
                uuid=row["uuid"],
                kind="static",
                name=row.get("name", row["uuid"]),
                index=index,
                visible=str(row.get("visible", row["uuid"])),
                memory_bytes=parse_bytes(row["memory"]) if "memory" in row else None,
            )
            for index, row in enumerate(rows)
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DeclarationError(
            f"[{SECTION}] static_devices cannot be read",
            str(error),
            'Write a JSON list like [{"uuid": "npu-0", "name": "NPU", "visible": "0", "memory": "16GiB"}].',
        ) from error
