"""Row blocks: numeric columns of a CSV input, converted once into arrays that are read at the speed of memory."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf  # noqa: TID253 -- loaded in the training process only, by name

from airflow_tf.core.errors import DeclarationError, InputError
from airflow_tf.runtime.reading import Paths, csv_dataset

_DESCRIPTION = "blocks.json"
_BLOCK_ROWS = 1 << 16


def convert_csv(paths: Paths, columns: Sequence[str], folder: str | Path, **options: Any) -> int:
    """Write the columns of CSV files as raw arrays into ``folder`` and return the number of rows.

    The folder appears whole, by a rename; one that exists is left as it is. ``options`` are those of
    :func:`~airflow_tf.runtime.reading.csv_dataset`.

    :raises DeclarationError: if a column is of type string.
    """
    target = Path(folder)
    if (target / _DESCRIPTION).exists():
        return _description(target)[1]
    if "string" in columns:
        raise DeclarationError("a column is of type string", "blocks hold numbers", "Read the CSV files instead.")
    building = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    building.mkdir(parents=True)
    try:
        rows = 0
        files = [(building / f"{number}.bin").open("wb") for number in range(len(columns))]
        try:
            for block in csv_dataset(paths, columns, batch_rows=_BLOCK_ROWS, **options).as_numpy_iterator():
                rows += len(block[0])
                for file, values in zip(files, block, strict=True):
                    values.tofile(file)
        finally:
            for file in files:
                file.close()
        (building / _DESCRIPTION).write_text(json.dumps({"columns": list(columns), "rows": rows}))
        os.rename(building, target)  # noqa: PTH104 -- Path.rename is this call
    except OSError:
        if not (target / _DESCRIPTION).exists():  # else another process was faster
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return _description(target)[1]


def blocks_dataset(folder: str | Path, *, batch_rows: int = 1024) -> tf.data.Dataset:
    """Return the rows that :func:`convert_csv` wrote, as tuples with one tensor of ``batch_rows`` values per column.

    The arrays are mapped into memory, so their size does not matter.
    """
    columns, rows = _description(Path(folder))
    arrays = [
        np.memmap(Path(folder) / f"{number}.bin", dtype=kind, mode="r", shape=(rows,)) if rows else np.empty(0, kind)
        for number, kind in enumerate(columns)
    ]

    def block(start: int) -> list[Any]:
        return [np.asarray(array[start : start + _BLOCK_ROWS]) for array in arrays]

    def in_graph(start: tf.Tensor) -> tuple[tf.Tensor, ...]:
        found = tf.numpy_function(block, [start], [tf.as_dtype(kind) for kind in columns])
        for tensor in found:
            tensor.set_shape([None])
        return tuple(found)

    blocks = tf.data.Dataset.range(0, rows, _BLOCK_ROWS).map(in_graph, tf.data.AUTOTUNE)
    return blocks.rebatch(batch_rows).prefetch(tf.data.AUTOTUNE)


def _description(folder: Path) -> tuple[list[str], int]:
    try:
        found = json.loads((folder / _DESCRIPTION).read_text())
    except FileNotFoundError as error:
        raise InputError(f"{folder} holds no row blocks", todo="Convert the CSV files first: convert_csv().") from error
    return list(found["columns"]), int(found["rows"])
