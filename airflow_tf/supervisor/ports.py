"""Ports for TensorFlow's servers: held from the choice until the replica listens, and who listens on one."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from airflow_tf.core.errors import SupervisorLostError

_FIRST_PORT, _LAST_PORT = 10240, 65535
_LOCAL, _STATE, _LISTEN = 1, 3, "0A"
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, slots=True)
class Listener:
    """The process that listens on a port; pid None where it belongs to somebody else and cannot be looked into."""

    pid: int | None
    command: str

    def __str__(self) -> str:
        """As in ``pid 17 (python train.py)``."""
        return f"pid {self.pid} ({self.command})" if self.pid is not None else "a process of another user"


class HeldPort:
    """A port that nobody else gets by chance, but that a server may bind which allows the reuse of addresses.

    The socket is bound and does not listen. It is bound before it allows reuse, so that no two are held at once; then
    a server that sets SO_REUSEADDR (as TensorFlow's, which switches SO_REUSEPORT off) or SO_REUSEPORT (as others of
    gRPC) can bind beside it, and a program that asks the kernel for any free port does not get it.

    :raises OSError: if the port is taken.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._socket = _bound_socket(number)
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            self._socket.setsockopt(socket.SOL_SOCKET, option, 1)

    def release(self) -> None:
        """Let go of it."""
        self._socket.close()


def _bound_socket(number: int) -> socket.socket:
    """Bind on all addresses, IPv4 and IPv6 where the host has it: TensorFlow's servers listen on both."""
    family, address = (socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "0.0.0.0")  # noqa: S104 (TensorFlow binds all, so all must be held)
    held = socket.socket(family)
    try:
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind((address, number))
    except OSError:
        held.close()
        raise
    return held


def hold_ports(count: int) -> list[HeldPort]:
    """Hold ``count`` free ports outside the range from which the kernel gives ports to clients.

    :raises SupervisorLostError: if there are not so many.
    """
    low, high = (int(word) for word in _EPHEMERAL.read_text().split())
    candidates = [*range(_FIRST_PORT, min(low, _LAST_PORT)), *range(high + 1, _LAST_PORT + 1)]
    first = secrets.randbelow(len(candidates))  # two supervisors rarely try the same ones
    held: list[HeldPort] = []
    for number in candidates[first:] + candidates[:first]:
        with contextlib.suppress(OSError):  # taken: the next one
            held.append(HeldPort(number))
        if len(held) == count:
            return held
    for port in held:
        port.release()
    raise SupervisorLostError(f"{count} free ports are not to be had", f"outside {low}-{high} all are taken")


def listeners(numbers: Iterable[int]) -> dict[int, list[Listener]]:
    """Return who listens on each of ``numbers``.

    Whose a socket is costs a look into all processes; that any of the ports is listened on, only one file.
    """
    found: dict[int, list[Listener]] = {number: [] for number in numbers}
    if not found.keys() & _listened_on():
        return found
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port in found:
            found[connection.laddr.port].append(Listener(connection.pid, _command(connection.pid)))
    return found


def _listened_on() -> set[int]:
    """Return the ports with a listening TCP socket, from ``/proc/net/tcp`` (state 0A)."""
    ports = set()
    for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with contextlib.suppress(FileNotFoundError):  # a host without IPv6
            for line in path.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[_STATE] == _LISTEN:
                    ports.add(int(fields[_LOCAL].rpartition(":")[2], 16))
    return ports


def _command(pid: int | None) -> str:
    if pid is None:
        return ""
    try:
        return " ".join(psutil.Process(pid).cmdline()) or psutil.Process(pid).name()
    except psutil.Error:
        return "ended meanwhile"
