"""A highly available HDFS for tests: two NameNodes over three JournalNodes, without automatic fail-over.

::

    with HaHdfsCluster() as cluster:
        cluster.kill(cluster.active)
        cluster.activate(cluster.standby)
"""

from __future__ import annotations

import json
import shutil
from typing import Any

from airflow_tf.testing.hdfs import SERVER_PACKAGE, HdfsCluster, is_datanode

NAME_SERVICE = "ns"
_JOURNALNODES = 3

_ADMIN = "org.apache.hadoop.hdfs.tools.DFSHAAdmin"


class HaHdfsCluster(HdfsCluster):
    """Two NameNodes, three JournalNodes with their edits, and ``datanodes`` DataNodes.

    The JournalNodes fence: an active NameNode that was only paused ends itself when it writes after the other one took
    over.
    """

    def __init__(self, datanodes: int = 2, **options: Any) -> None:
        super().__init__(datanodes, **options)
        self._both = ("namenode1", "namenode2")
        self._journals = tuple(f"journalnode{i}" for i in range(1, _JOURNALNODES + 1))
        self.names = (*self._journals, *self._both, *(name for name in self.names if is_datanode(name)))
        self.active = self._both[0]

    @property
    def standby(self) -> str:
        """Name of the NameNode that is not active."""
        return self._both[self.active == self._both[0]]

    @property
    def uri(self) -> str:
        """URI of the name service; a client needs :meth:`client_properties` to know it."""
        return f"hdfs://{NAME_SERVICE}"

    @property
    def webhdfs_url(self) -> str:
        """URLs of both NameNodes' HTTP servers, joined by ``;``."""
        return ";".join(f"http://127.0.0.1:{self._ports[f'{name}.http']}" for name in self._both)

    def client_properties(self) -> dict[str, str]:
        """Return the Hadoop properties with which a client finds the name service."""
        addresses = {
            f"dfs.namenode.rpc-address.{NAME_SERVICE}.{name}": f"127.0.0.1:{self._ports[f'{name}.rpc']}"
            for name in self._both
        }
        return addresses | {
            "dfs.nameservices": NAME_SERVICE,
            f"dfs.ha.namenodes.{NAME_SERVICE}": ",".join(self._both),
            f"dfs.client.failover.proxy.provider.{NAME_SERVICE}": (
                f"{SERVER_PACKAGE}.namenode.ha.ConfiguredFailoverProxyProvider"
            ),
        }

    def activate(self, name: str) -> None:
        """Make a standby active; the other one must be dead or paused.

        :raises AirflowTfError: if it does not become active.
        """
        self._wait({name}, lambda name: self._state(name) == "standby")
        # --forceactive: the tool would ask the other one, which is dead, whether it is active.
        self._run("activate", [_ADMIN, "-transitionToActive", "--forceactive", name])
        self.active = name
        self.wait_ready()

    def _begin(self) -> None:
        self.activate(self.active)

    def _state(self, name: str) -> str:
        return str(self._bean(name, "Hadoop:service=NameNode,name=NameNodeStatus").get("State"))

    def _namenodes(self) -> dict[str, str]:
        web = {
            f"dfs.namenode.http-address.{NAME_SERVICE}.{name}": f"127.0.0.1:{self._ports[f'{name}.http']}"
            for name in self._both
        }
        journals = ";".join(f"127.0.0.1:{self._ports[f'{name}.rpc']}" for name in self._journals)
        return (
            self.client_properties()
            | web
            | {
                "fs.defaultFS": self.uri,
                "dfs.namenode.shared.edits.dir": f"qjournal://{journals}/{NAME_SERVICE}",
                "dfs.ha.automatic-failover.enabled": "false",
                "dfs.ha.fencing.methods": "shell(/bin/true)",
                "dfs.ha.tail-edits.period": "1s",
            }
        )

    def _format(self) -> None:
        for name in self._journals:
            self._launch(name)
        self._wait(set(self._journals), self._serves)
        first, second = (self.folder / "data" / name for name in self._both)
        self._run("format", [*self._namenode_command(first.name), "-format", "-force", "-nonInteractive"])
        shutil.copytree(first, second)  # as -bootstrapStandby would, without a JVM

    def _launch(self, name: str) -> None:
        if name in self._journals and name in self._processes and self.runs(name):
            return  # they were needed to format
        super()._launch(name)

    def _namenode_command(self, name: str) -> list[str]:
        if name in self._journals:
            places = {"edits.dir": str(self.folder / "data" / name)}
            places |= {f"{use}-address": f"127.0.0.1:{self._ports[f'{name}.{use}']}" for use in ("rpc", "http")}
            options = [part for key, value in places.items() for part in ("-D", f"dfs.journalnode.{key}={value}")]
            return [f"{SERVER_PACKAGE.removesuffix('server')}qjournal.server.JournalNode", *options]
        folder = (self.folder / "data" / name).as_uri()
        own = ["-D", f"dfs.ha.namenode.id={name}", "-D", f"dfs.namenode.name.dir={folder}"]
        return [*super()._namenode_command(name), *own]

    def _serves(self, name: str) -> bool:
        if name in self._journals:
            return bool(self._bean(name, "Hadoop:service=JournalNode,name=JvmMetrics"))
        if is_datanode(name):
            info = self._bean(name, "Hadoop:service=DataNode,name=DataNodeInfo")
            actors = json.loads(info.get("BPServiceActorInfo", "[]"))
            return any(actor.get("NamenodeHaState") == "active" for actor in actors)
        if name == self.active:
            return super()._serves(name)
        return self._state(name) == "standby"
