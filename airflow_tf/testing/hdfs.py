"""A real HDFS on this machine for tests: one NameNode and a few DataNodes, each its own JVM.

::

    with HdfsCluster() as cluster:
        ...  # cluster.uri is like hdfs://127.0.0.1:23456
        cluster.kill("datanode1")

From a shell, ``python -m airflow_tf.testing.hdfs run -- COMMAND`` runs COMMAND with ``AIRFLOW_TF_HDFS`` set to the
cluster's URI. Needs ``java`` (17 or later) and, for the first run, ``mvn``.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Self

from airflow_tf.core.errors import AirflowTfError
from airflow_tf.testing.hadoop import HADOOP_VERSION, fetch_jars, find_program, write_configuration
from airflow_tf.testing.private import (
    free_ports,
    make_folder,
    remove_abandoned_folders,
    run_beside,
    start_with_owner,
)

NAMENODE = "namenode"
URI_VARIABLE = "AIRFLOW_TF_HDFS"
"""Environment variable in which ``run`` hands the cluster's URI to its command."""

_PREFIX = "airflow_tf-hdfs-"
SERVER_PACKAGE = "org.apache.hadoop.hdfs.server"
_JVM = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
)
_TAIL_BYTES = 2000
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy would not reach our loopback


def is_datanode(name: str) -> bool:
    """Tell whether a process of a cluster is a DataNode."""
    return name.startswith("datanode")


class HdfsCluster:
    """A NameNode and ``datanodes`` DataNodes on free loopback ports, with WebHDFS, in a private folder.

    Replication is 2, the block size 8 MiB by default, and whoever starts the cluster is its superuser. The JVMs die
    with the thread that called :meth:`start`, so call it from the main thread. A folder left by a killed test process
    is removed by the next cluster.
    """

    datanode_keys: ClassVar[dict[str, str]] = {"data": "address", "ipc": "ipc.address", "http": "http.address"}
    """Port of a DataNode to the property (``dfs.datanode.…``) that gives its address."""

    def __init__(
        self,
        datanodes: int = 2,
        *,
        blocksize_bytes: int = 8 * 2**20,
        start_seconds: float = 120.0,
        version: str = HADOOP_VERSION,
    ) -> None:
        self.names: tuple[str, ...] = (NAMENODE, *(f"datanode{i}" for i in range(1, datanodes + 1)))
        self._blocksize_bytes = blocksize_bytes
        self._start_seconds = start_seconds
        self._version = version
        self._owner = os.getpid()
        self._folder: Path | None = None
        self._lock: IO[str] | None = None
        self._ports: dict[str, int] = {}
        self._command: list[str] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._paused: set[str] = set()

    @property
    def uri(self) -> str:
        """URI of the file system, like ``hdfs://127.0.0.1:23456``."""
        return f"hdfs://127.0.0.1:{self._ports['namenode.rpc']}"

    @property
    def webhdfs_url(self) -> str:
        """URL of the NameNode's HTTP server, like ``http://127.0.0.1:23457``."""
        return f"http://127.0.0.1:{self._ports['namenode.http']}"

    @property
    def folder(self) -> Path:
        """Private folder with configuration, data and ``log/<name>.log``."""
        if self._folder is None:
            raise AirflowTfError("The test HDFS is not running", todo="Call start() first.")
        return self._folder

    def start(self) -> Self:
        """Fetch the jars if needed, format a new file system, start all processes and wait until they serve.

        :raises AirflowTfError: if Java or Maven is missing or the cluster is not ready in time.
        """
        java = find_program("java", "JAVA_HOME", "openjdk-17-jre-headless")
        jars = fetch_jars(self._version)
        remove_abandoned_folders(_PREFIX)
        self._folder, self._lock = make_folder(_PREFIX)
        atexit.register(self.stop)
        try:
            self._start(java, jars)
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self, java: str, jars: Path) -> None:
        folder = self.folder
        for name in ("conf", "log", "tmp", "data"):
            (folder / name).mkdir()
        uses = {name: tuple(self.datanode_keys) if is_datanode(name) else ("rpc", "http") for name in self.names}
        self._ports = free_ports([f"{name}.{use}" for name in self.names for use in uses[name]])
        self._prepare()
        write_configuration(
            folder / "conf",
            data=folder / "data",
            blocksize_bytes=self._blocksize_bytes,
            namenodes=self._namenodes(),
        )
        classpath = f"{folder / 'conf'}:{jars}/*"
        self._command = [java, *_JVM, *self._jvm_options(), f"-Djava.io.tmpdir={folder / 'tmp'}", "-cp", classpath]
        self._format()
        for name in self.names:
            self._launch(name)
        self._begin()

    def _prepare(self) -> None:
        """Make what the configuration will name; folders and ports exist."""

    def _jvm_options(self) -> list[str]:
        return []

    def _datanode_options(self) -> dict[str, str]:
        return {}

    def _begin(self) -> None:
        self.wait_ready()

    def _namenodes(self) -> dict[str, str]:
        """Return the properties that say where the NameNode is."""
        return {
            "fs.defaultFS": self.uri,
            "dfs.namenode.name.dir": (self.folder / "data" / NAMENODE).as_uri(),
            "dfs.namenode.http-address": self.webhdfs_url.removeprefix("http://"),
        }

    def _format(self) -> None:
        self._run("format", [*self._namenode_command(NAMENODE), "-format", "-force", "-nonInteractive"])

    def _run(self, name: str, arguments: list[str]) -> None:
        """Run a program of Hadoop to its end."""
        self._spawn(name, arguments)
        if self._processes[name].wait(self._start_seconds) != 0:
            raise AirflowTfError(f"The test HDFS could not {name}", self._log_tail(name))
        del self._processes[name]

    def _namenode_command(self, name: str) -> list[str]:
        del name
        return [f"{SERVER_PACKAGE}.namenode.NameNode"]

    def stop(self) -> None:
        """Kill all processes and remove the folder; does nothing if the cluster does not run or in a forked child."""
        if self._owner != os.getpid():
            return
        atexit.unregister(self.stop)
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()
        self._paused.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def pid(self, name: str) -> int:
        """Return the process id of ``namenode``, ``datanode1`` and so on."""
        return self._process(name).pid

    def kill(self, name: str) -> None:
        """Kill a process (SIGKILL) and wait for its end."""
        process = self._process(name)
        process.kill()
        process.wait()
        self._paused.discard(name)

    def pause(self, name: str) -> None:
        """Stop a process (SIGSTOP): its connections stay open and nothing answers."""
        self._process(name).send_signal(signal.SIGSTOP)
        self._paused.add(name)

    def resume(self, name: str) -> None:
        """Continue a paused process."""
        self._process(name).send_signal(signal.SIGCONT)
        self._paused.discard(name)

    def restart(self, name: str) -> None:
        """Kill a process if it runs, start it again on the same ports and wait until the cluster is ready."""
        self.kill(name)
        self._launch(name)
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the NameNode has left safe mode and every running, unpaused DataNode serves it.

        Each DataNode is asked too: after a kill the NameNode still counts the dead one as live for 12 s.

        :raises AirflowTfError: if that takes longer than ``start_seconds`` or a process ends meanwhile.
        """
        self._wait(set(self.names), self._serves)

    def _wait(self, waiting: set[str], serves: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + self._start_seconds
        while waiting:
            for name in sorted(waiting):
                running = self.runs(name)
                if name == NAMENODE and not running:
                    raise AirflowTfError("The NameNode of the test HDFS ended or is paused", self._log_tail(name))
                if not running or serves(name):
                    waiting.discard(name)
            if waiting and time.monotonic() > deadline:
                name = min(waiting)
                raise AirflowTfError(
                    f"The test HDFS was not ready within {self._start_seconds:.0f} s",
                    f"{name} does not serve; its log ends with:\n{self._log_tail(name)}",
                )
            time.sleep(0.1)

    def runs(self, name: str) -> bool:
        """Tell whether a process has neither ended nor been paused."""
        return self._process(name).poll() is None and name not in self._paused

    def _serves(self, name: str) -> bool:
        if not is_datanode(name):
            state = self._bean(name, "Hadoop:service=NameNode,name=FSNamesystemState")
            live = sum(self.runs(other) for other in self._processes if is_datanode(other))
            reports = self._bean(name, "Hadoop:service=NameNode,name=NameNodeActivity")
            return (
                state.get("FSState") == "Operational"
                and int(state.get("NumLiveDataNodes", 0)) >= live
                # With few blocks a restarted NameNode leaves safe mode before it knows where any of them is.
                and int(reports.get("StorageBlockReportNumOps", 0)) >= live
            )
        info = self._bean(name, "Hadoop:service=DataNode,name=DataNodeInfo")
        actors = json.loads(info.get("BPServiceActorInfo", "[]"))
        return bool(actors) and all(
            actor.get("ActorState") == "RUNNING" and actor.get("NamenodeHaState") == "active" for actor in actors
        )

    def _bean(self, name: str, query: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._ports[f'{name}.http']}/jmx?qry={query}"
        try:
            with _OPENER.open(url, timeout=2) as answer:
                beans: list[dict[str, Any]] = json.load(answer)["beans"]
        except (OSError, ValueError, urllib.error.URLError):
            return {}
        return beans[0] if beans else {}

    def _process(self, name: str) -> subprocess.Popen[bytes]:
        if name not in self._processes:
            known = ", ".join(self._processes) or "none, the cluster does not run"
            raise AirflowTfError(f"The test HDFS has no process {name!r}", f"known: {known}")
        return self._processes[name]

    def _launch(self, name: str) -> None:
        arguments = self._namenode_command(name)
        if is_datanode(name):
            arguments = [
                f"{SERVER_PACKAGE}.datanode.DataNode",
                "-D",
                f"dfs.datanode.data.dir={self.folder / 'data' / name}",
            ]
            for key, value in self._datanode_options().items():
                arguments += ["-D", f"{key}={value}"]
            for use, key in self.datanode_keys.items():
                arguments += ["-D", f"dfs.datanode.{key}=127.0.0.1:{self._ports[f'{name}.{use}']}"]
        self._spawn(name, arguments)

    def _spawn(self, name: str, arguments: list[str]) -> None:
        with (self.folder / "log" / f"{name}.log").open("ab") as log:
            self._processes[name] = start_with_owner([*self._command, *arguments], log)

    def _log_tail(self, name: str) -> str:
        return (self.folder / "log" / f"{name}.log").read_bytes()[-_TAIL_BYTES:].decode(errors="replace")


def main(arguments: list[str] | None = None) -> int:
    """Run ``fetch`` or ``run -- COMMAND`` and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m airflow_tf.testing.hdfs", description="A real HDFS for tests.")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("fetch", help="fetch Hadoop's jars into the cache and print their folder")
    run = actions.add_parser("run", help=f"start a cluster, run COMMAND with {URI_VARIABLE} set, stop the cluster")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.action == "fetch":
            sys.stdout.write(f"{fetch_jars()}\n")
            return 0
        command = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
        if not command:
            run.error("COMMAND is missing")
        return run_beside(HdfsCluster(), command, lambda cluster: {URI_VARIABLE: cluster.uri})
    except AirflowTfError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
