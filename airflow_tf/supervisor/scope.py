"""Whether a service manager would kill a supervisor together with the Airflow worker that started it.

systemd ends all processes of a service's control group, detached or not. A scope of its own takes the supervisor out.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from pathlib import Path

from airflow_tf.core.errors import DeclarationError

log = logging.getLogger(__name__)

OFF = "off"
TRY_SECONDS = 10.0
_MEMBERSHIP = Path("/proc/self/cgroup")


def in_scope(choice: str, command: list[str], membership: Path = _MEMBERSHIP) -> list[str]:
    """Return ``command`` so that it runs in a scope of its own, unchanged where none is needed or can be had."""
    if choice == OFF or not service_of(membership):
        return command
    prefix = _prefix()
    if prefix is None or (why := _try(prefix)):
        log.warning("the supervisor stays in the service's control group: %s", why if prefix else "no systemd-run")
        return command
    return [*prefix, *command]


def describe(choice: str, membership: Path = _MEMBERSHIP) -> str:
    """Say what a restart of the service that this process belongs to does to training.

    :raises DeclarationError: if it would end it.
    """
    service = service_of(membership)
    if not service:
        return "this command runs in no systemd service; if the worker does, run it there as well"
    todo = f"Set KillMode=process in {service}, or allow scopes: loginctl enable-linger for the user that runs it."
    if choice == OFF:
        raise DeclarationError(f"a restart of {service} ends training", "own_scope is off", todo)
    prefix = _prefix()
    why = _try(prefix) if prefix else "systemd-run is not installed"
    if why:
        raise DeclarationError(f"a restart of {service} ends training", f"no scope of its own: {why}", todo)
    return f"training runs in scopes of its own and outlives a restart of {service}"


def service_of(membership: Path = _MEMBERSHIP) -> str:
    """Return the systemd service whose control group this process is in, empty where it is in none."""
    for line in membership.read_text().splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" or controllers == "name=systemd":
            units = [part for part in path.split("/") if part.endswith((".service", ".scope"))]
            # A user manager is a service, too; whoever runs in a scope below it is out of its reach.
            if units and units[-1].endswith(".service"):
                return units[-1]
    return ""


def _prefix() -> list[str] | None:
    program = shutil.which("systemd-run")
    if program is None:
        return None
    user = [] if os.geteuid() == 0 else ["--user"]
    return [program, *user, "--scope", "--quiet", "--collect", "--property=Delegate=yes", "--"]


def _try(prefix: list[str]) -> str:
    """Run nothing in a scope; return why that fails."""
    try:
        done = subprocess.run(
            [*prefix, "true"],
            capture_output=True,
            text=True,
            timeout=TRY_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")
