"""The load test of an exported SavedModel: a fresh process loads it and runs every signature once.

What is wrong with it for a server (custom objects that only the exporting program has, a signature that was never
traced, outputs that are not numbers) shows here, before it is published.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.export import EXPORT_VARIABLE, SAMPLE_VARIABLE, SIGNATURES_FILE


def main() -> None:
    """Test the SavedModel that the environment names and write what :func:`check` returns into this folder.

    If it does not pass, end with a message and code 1.
    """
    sample = Path(os.environ[SAMPLE_VARIABLE])
    try:
        arrays = dict(np.load(sample, allow_pickle=False)) if sample.exists() else {}
        report = check(Path(os.environ[EXPORT_VARIABLE]), arrays)
    except (CheckpointError, ValueError) as error:  # ValueError: the sample is no file of plain arrays
        raise SystemExit(f"refused: {error}") from error
    Path(SIGNATURES_FILE).write_text(json.dumps(report), encoding="utf-8")


def check(folder: Path, sample: Mapping[str, Any]) -> dict[str, Any]:
    """Load a SavedModel, run all its signatures; return name -> ``inputs`` and ``outputs`` -> name -> type and shape.

    :param sample: name of an input -> array. An input that it lacks gets zeros (text: empty), open dimensions 1.
    :raises CheckpointError: if it cannot be loaded, has no signature, or one fails or gives NaN or infinity.
    """
    tf = importlib.import_module("tensorflow")
    try:
        loaded = tf.saved_model.load(str(folder))
    except Exception as error:
        raise CheckpointError("the SavedModel cannot be loaded in a fresh process", repr(error)) from error
    if not loaded.signatures:
        todo = "Save with signatures=, or decorate __call__ with tf.function and an input_signature."
        raise CheckpointError("the SavedModel has no signature", "a server could not call it", todo)
    specs = {name: function.structured_input_signature[1] for name, function in loaded.signatures.items()}
    known = {key for inputs in specs.values() for key in inputs}
    if strange := sorted(sample.keys() - known):
        why = f"no signature has such an input; known are: {', '.join(sorted(known)) or 'none'}"
        raise CheckpointError(f"the sample has {', '.join(strange)}", why, "Save it under the inputs' names.")
    return {name: _run(tf, name, loaded.signatures[name], specs[name], sample) for name in sorted(specs)}


def _run(tf: Any, name: str, function: Any, inputs: Mapping[str, Any], sample: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401 (TensorFlow's own)
    todo = "Correct the export, or save a sample that fits (AIRFLOW_TF_EXPORT_SAMPLE) if zeros are no valid input."
    try:
        outputs = function(**{key: _value(tf, spec, sample.get(key)) for key, spec in inputs.items()})
    except Exception as error:
        raise CheckpointError(f"signature {name!r} cannot be run", repr(error), todo) from error
    for key, value in outputs.items():
        if value.dtype.is_floating and not bool(tf.reduce_all(tf.math.is_finite(value))):
            raise CheckpointError(f"output {key!r} of signature {name!r} is NaN or infinite", todo=todo)
    return {"inputs": _described(inputs), "outputs": _described(outputs)}


def _value(tf: Any, spec: Any, given: Any) -> Any:  # noqa: ANN401 (TensorFlow's own)
    if given is not None:
        return tf.constant(given, dtype=spec.dtype)
    shape = [1 if size is None else size for size in spec.shape] if spec.shape.rank is not None else []
    return tf.zeros(shape, dtype=spec.dtype)


def _described(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: {"dtype": each.dtype.name, "shape": None if each.shape.rank is None else each.shape.as_list()}
        for key, each in tensors.items()
    }
