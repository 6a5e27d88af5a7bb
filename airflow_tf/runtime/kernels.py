"""Which operations have kernels for GPUs, and for which types: why some fall to the CPU."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from airflow_tf.core.launch import KERNELS_FILE


def record(folder: Path) -> None:
    """Tell the kernels of a TensorFlow that sees GPUs, and none where it sees no GPU: for the placement report."""
    sees_gpu = importlib.import_module("tensorflow").config.list_physical_devices("GPU")
    (folder / KERNELS_FILE).write_text(json.dumps(registered() if sees_gpu else {}, separators=(",", ":")))


def registered() -> dict[str, list[dict[str, list[str]]]]:
    """Return, for each type of operation, its kernels for GPUs: attribute -> allowed types.

    One for any device (``DEFAULT``) counts: the placer takes it where there is none for GPUs. Labelled ones do not:
    they are taken only where the program names them.
    """
    kernels = importlib.import_module("tensorflow.python.framework.kernels").get_all_registered_kernels()
    as_dtype = importlib.import_module("tensorflow").as_dtype
    found: dict[str, list[dict[str, list[str]]]] = {}
    for kernel in kernels.kernel:
        ours = found.setdefault(kernel.op, [])
        if kernel.device_type in {"GPU", "DEFAULT"} and not kernel.label:
            ours.append(
                {one.name: [as_dtype(kind).name for kind in one.allowed_values.list.type] for one in kernel.constraint}
            )
    return found
