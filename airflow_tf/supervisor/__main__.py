"""Entry of a detached supervisor: ``python -m airflow_tf.supervisor`` with its launch on standard input.

The first thing it does is start the zygote, so that TensorFlow's import runs while the rest is imported here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import socket
import sys
from pathlib import Path

from airflow_tf.core.launch import GangLaunch, import_time_part
from airflow_tf.supervisor.processes import Zygote
from airflow_tf.supervisor.protocol import SOCKET_NAME

_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Run the supervisor; the descriptor of its lock file is inherited and lives as long as the process."""
    if os.fork():
        os._exit(0)
    launch = GangLaunch.loads(sys.stdin.readline())
    os.set_inheritable(int(sys.argv[1]), False)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = Path(launch.folder)
    zygote = None
    if launch.start_method == "zygote":
        zygote = Zygote(launch.python, import_time_part(launch.environment), folder)
    from airflow_tf.supervisor.gang import GangSupervisor  # noqa: PLC0415 (SQLAlchemy's import runs beside the zygote's)

    asyncio.run(GangSupervisor(launch, listen(folder), zygote).run())


def listen(folder: Path) -> socket.socket:
    """Bind the gang's socket, mode 0600, by a path through the folder's descriptor: a socket's path has 107 bytes."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        path = f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
        with contextlib.suppress(FileNotFoundError):  # the first supervisor of this gang
            os.unlink(path)  # noqa: PTH108 (the path goes through a descriptor)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(mask)
        listener.listen(128)
        return listener
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
