"""The program of every replica in the kill matrix: real checkpoints, held in each phase until a file appears.

``<gates>/<phase>-<replica>-<pid>`` says that a process has come to a phase; it goes on once ``<gates>/open-<phase>``
(or ``open-<phase>-<replica>``) exists. SIGTERM is answered as a careful program does: save what there is, end with 143. Files ``stubborn`` and
``daemon`` in the folder make it ignore SIGTERM with a grandchild that does so too, and leave a daemon behind.
"""

import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

from airflow_tf.core.checkpoint import BundleWriter, Entry
from airflow_tf.runtime import context

GATES = Path(os.environ["MATRIX_GATES"])
RUN = context()
STUBBORN = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.setsid(); time.sleep(600)"
DAEMON = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\ntime.sleep(600)"


class Stop(Exception):  # noqa: N818 (not an error)
    pass


def on_term(*_):
    raise Stop


def arrive(phase):
    (GATES / f"{phase}-{RUN.replica}-{os.getpid()}").touch()


def is_open(phase):
    return (GATES / f"open-{phase}").exists() or (GATES / f"open-{phase}-{RUN.replica}").exists()


def wait_open(phase):
    while not is_open(phase):
        time.sleep(0.05)


def save(step, gate=None):
    with BundleWriter(str(RUN.checkpoint_dir / f"ck-{step}")) as writer:
        writer.add(b"weight", Entry(1, (1,), 0, 0, 4, 0), [struct.pack("<f", float(step))])
        if gate:
            arrive(gate)
            wait_open(gate)
        writer.commit()
    print("saved", step, flush=True)  # noqa: T201 (the output that views show)


def misbehave():
    if (GATES / "stubborn").exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", STUBBORN])
    if (GATES / "daemon").exists():
        subprocess.Popen([sys.executable, "-c", DAEMON]).wait()


def train(step):
    """Take steps until the gate opens, or until SIGTERM comes; return the last step."""
    try:
        while True:
            step += 1
            RUN.report(step, loss=1.0 / step)
            if step % 10 == 3:
                save(step)
                arrive("training")
            if step % 10 == 3 and is_open("training"):
                return step, False
            time.sleep(0.1)
    except Stop:
        return step, True


def main():
    GATES.mkdir(parents=True, exist_ok=True)
    arrive("starting")
    wait_open("starting")
    step = int(RUN.resume_from.rpartition("-")[2]) if RUN.resume_from else 0
    print("resumed at" if step else "started at", step, flush=True)  # noqa: T201 (the output that views show)
    signal.signal(signal.SIGTERM, on_term)
    misbehave()
    step, is_over = train(step)
    if is_over:
        save(step)
        sys.exit(143)
    stopped = []
    if not (GATES / "stubborn").exists():
        signal.signal(signal.SIGTERM, lambda *_: stopped.append(arrive("stopped")))
    save(step + 1, gate="saving")
    sys.exit(143 if stopped else 0)


main()
