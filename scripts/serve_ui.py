"""Run ``airflow standalone``, say where it is and how to log in, and stop all of it on ^C or SIGTERM.

Usage: ``python scripts/serve_ui.py LOG_FILE``, with ``AIRFLOW_HOME`` and all other settings in the environment.
Airflow runs in a session of its own: a ^C of the terminal must reach its components once, in order, from Airflow;
where each of them gets it from the terminal as well, some hang in their shutdown.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import FrameType

import psutil

READY_SECONDS = 300.0
STOP_SECONDS = 30.0


def free_port() -> int:
    """Return Airflow's usual port if it is free, else some free one."""
    for port in (8080, 0):
        with contextlib.suppress(OSError), socket.socket() as probe:  # taken: try the next
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise SystemExit("no port is free")


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """Treat SIGTERM like ^C."""
    raise KeyboardInterrupt


def wait_until_ready(server: subprocess.Popen[bytes], address: str, log: str) -> None:
    """Wait until the server answers."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(address, timeout=5):  # noqa: S310 - our own http address
            return
        if server.poll() is not None:
            break
        time.sleep(0.5)
    raise SystemExit(f"Airflow did not start; see {log}")


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ask Airflow to stop its components; end what is left of them when the time is over."""
    family: list[psutil.Process] = []
    if server.poll() is None:
        root = psutil.Process(server.pid)
        family = [root, *root.children(recursive=True)]
        server.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):  # then the rest is ended below
            server.wait(STOP_SECONDS)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):  # ended as asked
            process.terminate()
    _, alive = psutil.wait_procs(family, timeout=5)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):  # ended meanwhile
            process.kill()


def main() -> None:
    """Serve until interrupted."""
    log, home = sys.argv[1], Path(os.environ["AIRFLOW_HOME"])
    port = free_port()
    address = f"http://localhost:{port}"
    environment = os.environ | {"AIRFLOW__API__PORT": str(port), "AIRFLOW__API__BASE_URL": address}
    signal.signal(signal.SIGTERM, interrupt)
    with Path(log).open("wb") as output:
        server = subprocess.Popen(
            ["airflow", "standalone"], env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_until_ready(server, f"{address}/api/v2/version", log)
        passwords = json.loads((home / "simple_auth_manager_passwords.json.generated").read_text(encoding="utf-8"))
        for user, password in passwords.items():
            print(f"address {address}/dags/flights  user {user}  password {password}  (^C stops Airflow)", flush=True)
        raise SystemExit(server.wait())
    except KeyboardInterrupt:
        print("\nStopping Airflow", flush=True)
    finally:
        stop(server)


if __name__ == "__main__":
    main()
