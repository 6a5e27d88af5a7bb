"""Ports that are held until a server binds them, and who listens."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_tf.core.errors import SupervisorLostError
from airflow_tf.supervisor import ports
from airflow_tf.supervisor.ports import HeldPort, hold_ports, listeners


@pytest.fixture
def port() -> Iterator[HeldPort]:
    (held,) = hold_ports(1)
    yield held
    held.release()


def bind(number: int, *options: int, address: str = "127.0.0.1") -> socket.socket:
    server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        for option in options:
            server.setsockopt(socket.SOL_SOCKET, option, 1)
        server.bind((address, number))
        server.listen()
    except OSError:
        server.close()
        raise
    return server


def test_held_ports_are_different_and_outside_the_range_of_clients() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    held = hold_ports(20)
    numbers = [port.number for port in held]
    for port in held:
        port.release()
    assert len(set(numbers)) == 20
    assert not any(low <= number <= high for number in numbers)


def test_a_port_is_held_once_only(port: HeldPort) -> None:
    with pytest.raises(OSError, match="in use"):
        HeldPort(port.number)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
@pytest.mark.parametrize(
    "options", [(socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)]
)
def test_a_server_that_allows_reuse_binds_a_held_port_and_is_reached(
    port: HeldPort, options: tuple[int, ...], address: str
) -> None:
    with bind(port.number, *options, address=address) as server:
        with socket.create_connection(("127.0.0.1", port.number), 5), server.accept()[0]:
            pass
        assert [listener.pid for listener in listeners([port.number])[port.number]] == [os.getpid()]


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_program_that_does_not_expect_company_cannot_take_a_held_port(port: HeldPort, address: str) -> None:
    with pytest.raises(OSError, match="in use"):
        bind(port.number, address=address)


def test_ports_in_use_are_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (port,) = hold_ports(1)
    monkeypatch.setattr(ports, "_FIRST_PORT", port.number - 1)
    monkeypatch.setattr(ports, "_LAST_PORT", port.number)
    monkeypatch.setattr(ports, "_EPHEMERAL", tmp_path / "range")
    (tmp_path / "range").write_text(f"{port.number + 1}\t{port.number + 2}\n")
    try:
        with pytest.raises(SupervisorLostError, match="2 free ports are not to be had"):
            hold_ports(2)
    finally:
        port.release()


def test_nobody_listens_on_a_held_port(port: HeldPort) -> None:
    assert listeners([port.number]) == {port.number: []}


def test_a_listener_is_named_by_pid_and_command(port: HeldPort) -> None:
    script = (
        "import socket, sys\ns = socket.socket()\ns.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "s.bind(('127.0.0.1', int(sys.argv[1])))\ns.listen()\nprint(flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(port.number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (found,) = listeners([port.number])[port.number]
        assert found.pid == process.pid
        assert str(found).startswith(f"pid {process.pid} ({sys.executable} -c import socket")
        process.communicate()


@pytest.mark.tensorflow
def test_a_server_of_tensorflow_binds_a_held_port_and_listens_on_all_addresses(port: HeldPort) -> None:
    """If it listened where it is told to, docs/adr/0022 would be out of date."""
    script = (
        "import psutil, sys, tensorflow as tf\n"
        "server = tf.distribute.Server({'worker': ['127.0.0.1:' + sys.argv[1]]}, job_name='worker', task_index=0)\n"
        "print('target', server.target)\n"
        "ours = [c.laddr for c in psutil.Process().net_connections() if c.status == 'LISTEN']\n"
        "print('listens', *{a.ip for a in ours if a.port == int(sys.argv[1])})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(port.number)], capture_output=True, text=True, check=True, timeout=120
    )
    assert f"target grpc://127.0.0.1:{port.number}" in done.stdout
    assert done.stdout.split("listens ")[1].strip() in {"::", "0.0.0.0"}
