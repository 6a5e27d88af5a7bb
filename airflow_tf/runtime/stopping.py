"""The time that a stop leaves (SIGTERM, then ``kill_grace_seconds``), used for one more checkpoint.

A program that was stopped ends with :data:`STOPPED`, never with 0: a signal that did not come from the supervisor must
not make a half-trained model count as finished.

Python runs a signal's handler in the main thread between two instructions: after a step, a session's run or a save,
never within one. TensorFlow writes a checkpoint under temporary names first, so a save that a stop interrupts in
between leaves nothing that could be taken for whole.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType

STOPPED = 128 + signal.SIGTERM

_state = {"installed": False, "requested": False}
_callbacks: list[Callable[[], object]] = []


def stop_requested() -> bool:
    """Tell whether this process was asked to end; call it first before training begins, in the main thread.

    For loops that save and end by themselves, with ``sys.exit(airflow_tf.runtime.STOPPED)``.
    """
    _install()
    return _state["requested"]


def on_stop(save: Callable[[], object]) -> None:
    """Call ``save`` when this process is asked to end, then end it; the newest ``save`` goes first.

    Call it in the main thread. A second signal while ``save`` runs changes nothing.
    """
    _install()
    _callbacks.append(save)


def _install() -> None:
    if not _state["installed"]:
        signal.signal(signal.SIGTERM, _handle)
        _state["installed"] = True


def _handle(_number: int, _frame: FrameType | None) -> None:
    if _state["requested"]:
        return
    _state["requested"] = True
    if _callbacks:
        for save in reversed(_callbacks):
            save()
        sys.exit(STOPPED)
