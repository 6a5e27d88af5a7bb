"""One more checkpoint at a stop, for Keras ``fit`` and for TensorFlow-1 sessions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf  # noqa: TID253 (loaded only when a program asks for one of these)

from airflow_tf.runtime.stopping import STOPPED, stop_requested


class SaveOnStop(tf.keras.callbacks.Callback):  # type: ignore[misc]  # TensorFlow has no types
    """Let ``fit`` stop after the batch in which the process was asked to end, call ``save``, and end the process.

    :param save: saves everything that is needed to go on, like ``manager.save`` of a ``CheckpointManager``.
    """

    def __init__(self, save: Callable[[], object]) -> None:
        super().__init__()
        self._save = save

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ANN401 (Keras')
        """Listen from now on."""
        del logs
        stop_requested()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ANN401 (Keras')
        """Save and end, if that was asked."""
        del batch, logs
        if stop_requested():
            self._save()
            sys.exit(STOPPED)


class StopHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow has no types
    """Let a ``MonitoredSession`` stop after the run in which the process was asked to end; its saver saves then.

    Give it as the last of the hooks: it ends the process when those before it have done their work.
    """

    def begin(self) -> None:
        """Listen from now on."""
        stop_requested()

    def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ANN401 (TensorFlow's)
        """Ask the session to stop, if that was asked of the process."""
        del run_values
        if stop_requested():
            run_context.request_stop()

    def end(self, session: Any) -> None:  # noqa: ANN401 (TensorFlow's)
        """End the process, if that was asked."""
        del session
        if stop_requested():
            sys.exit(STOPPED)
