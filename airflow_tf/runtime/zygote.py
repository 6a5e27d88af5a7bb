"""The zygote: import TensorFlow once, then fork one replica per request (0.1 s instead of 6 to 13 s of import).

It never runs an op. Its parent, the supervisor, talks to it over a socket in JSON lines::

    -> {"fork": "<path of launch.json>"}
    <- {"ready": true}                       TensorFlow is imported
    <- {"forked": pid, "launch": "<path>"}
    <- {"refused": "<why>", "launch": "<path>"}
    <- {"exited": pid, "status": wait status}
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from pathlib import Path

from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.runtime import replica
from airflow_tf.runtime.process import PARENT_VARIABLE, die_with_parent


class Zygote:
    """Serve fork requests until the supervisor closes its end."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._pending = b""
        self._children: set[int] = set()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> ReplicaLaunch | None:
        """Handle requests; return a launch in a forked child, None in the zygote when it may end."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._send({"ready": True})
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._wake_read in ready:
                    self._reap()
                if self._channel in ready:
                    requests = self._receive()
                    if requests is None:
                        return None
                    for request in requests:
                        launch = self._fork(Path(request["fork"]))
                        if launch is not None:
                            return launch

    def _receive(self) -> list[dict[str, str]] | None:
        data = self._channel.recv(65536)
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _send(self, message: dict[str, object]) -> None:
        self._channel.sendall(json.dumps(message).encode() + b"\n")

    def _fork(self, path: Path) -> ReplicaLaunch | None:
        """Fork a replica; return its launch in the child, None in the parent."""
        reason = unfit_to_fork()
        if reason:
            self._send({"refused": reason, "launch": str(path)})
            return None
        launch = ReplicaLaunch.read(path)
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            self._channel.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            replica.enter_forked(launch, parent)
            return launch
        self._children.add(pid)
        self._send({"forked": pid, "launch": str(path)})
        return None

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is drained
            while os.read(self._wake_read, 4096):
                continue
        for pid in list(self._children):
            with contextlib.suppress(ChildProcessError):  # reaped already
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self._children.discard(pid)
                    self._send({"exited": pid, "status": status})


def unfit_to_fork() -> str:
    """Return why a fork would give broken replicas, or an empty string."""
    context = sys.modules.get("tensorflow.python.eager.context")
    if context is not None and getattr(context, "_context", None) is not None:
        return "TensorFlow's eager context already exists in the zygote; a fork of it hangs"
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of this very listing
            if str(link.readlink()).startswith("/dev/nvidia"):
                return f"the zygote holds {link.readlink()} open; CUDA does not survive a fork"
    return ""


def main() -> None:
    """Import TensorFlow, serve, and become a replica in each child."""
    die_with_parent(int(os.environ.pop(PARENT_VARIABLE)))
    channel = socket.socket(fileno=int(sys.argv[1]))
    importlib.import_module("tensorflow")
    # Half a second per replica: a collection in a fork would write to, and so copy, every page of TensorFlow's objects.
    gc.collect()
    gc.freeze()
    launch = Zygote(channel).serve()
    if launch is not None:
        replica.run_forked(launch)
