"""Messages between views and a supervisor: JSON lines over a unix socket.

From a view: ``attach`` (look at a replica, start what does not run) and ``stop``. Closing the connection is detach.
To a view: ``attached``, ``attempt`` (where its output is), ``waiting`` (its replica has ended, its gang goes on),
``restarting``, ``note``, and one of ``result``, ``refused``, ``superseded``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

from airflow_tf.core.devices import Device, Member
from airflow_tf.core.identity import View
from airflow_tf.core.launch import Plan, ReplicaLaunch

SOCKET_NAME = "supervisor.sock"
LOCK_NAME = "supervisor.lock"
LOG_NAME = "supervisor.log"
MAX_LINE_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Attach:
    """A view's wish to look at its replica, with all that is needed to start it, or in a gang all replicas.

    ``tries_left`` and ``orphan_grace_seconds`` tell the supervisor whether and when another try can come.
    """

    view: View
    replica: int
    generation: int
    plan: Plan
    launches: tuple[ReplicaLaunch, ...]
    members: tuple[Member, ...]
    tries_left: int
    orphan_grace_seconds: float

    @property
    def kill_grace_seconds(self) -> float:
        """Time between SIGTERM and SIGKILL."""
        return max(launch.kill_grace_seconds for launch in self.launches)

    def to_json(self) -> dict[str, Any]:
        """Return the message."""
        return {"type": "attach"} | asdict(self)


def attach_from_json(message: dict[str, Any]) -> Attach:
    """Read a message written by :meth:`Attach.to_json`."""
    return Attach(
        view=View(**message["view"]),
        replica=message["replica"],
        generation=message["generation"],
        plan=Plan(**message["plan"]),
        launches=tuple(ReplicaLaunch(**launch) for launch in message["launches"]),
        members=tuple(
            Member(**(member | {"devices": tuple(Device(**device) for device in member["devices"])}))
            for member in message["members"]
        ),
        tries_left=message["tries_left"],
        orphan_grace_seconds=message["orphan_grace_seconds"],
    )


class Connection:
    """The supervisor's side of one view's connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def notify(self, message: dict[str, Any]) -> None:
        """Queue one message; the transport notices a broken connection."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    @staticmethod
    async def messages(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
        """Yield the view's messages until it closes."""
        while line := await reader.readline():
            yield json.loads(line)
