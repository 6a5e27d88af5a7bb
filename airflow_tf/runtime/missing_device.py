"""What TensorFlow leaves out of some errors about a missing device: which operation asked for it, and what exists."""

from __future__ import annotations

import importlib
import sys

from airflow_tf.core.placement import UnlistedDevice, note_devices, unlisted_device


def explain(error: BaseException) -> None:
    """Add it as a note, which Python shows with the error, to an error or to one that it was raised from.

    Only the eager runtime has errors that need it: sessions list their devices in all of theirs.
    """
    tensorflow = sys.modules.get("tensorflow")
    chained: BaseException | None = error
    seen: list[BaseException] = []
    while chained is not None and tensorflow is not None and chained not in seen:
        seen.append(chained)
        missing = unlisted_device(str(chained))
        if missing is not None and tensorflow.executing_eagerly():
            devices = [device.name for device in tensorflow.config.list_logical_devices()]
            chained.add_note(note_devices(devices, _asker(missing)))
        chained = chained.__cause__ or chained.__context__


def _asker(missing: UnlistedDevice) -> str:
    """Return the operation of a function that asks for the device, empty where there is no function or none in it."""
    context = importlib.import_module("tensorflow.python.eager.context").context()
    if not missing.function or not context.has_function(missing.function):
        return ""
    nodes = context.get_function_def(missing.function).node_def
    return next((node.name for node in nodes if missing.is_asked_by(node.device)), "")
