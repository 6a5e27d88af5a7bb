"""A function of a DAG file as a training program: what the script that ``@task.tensorflow`` writes calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from airflow_tf.runtime.context import context


def call(function: Callable[..., Any], arguments: str, keywords: str) -> None:
    """Call ``function``; the numbers that it returns by name become metrics of the replica.

    :param arguments: its positional arguments, as a JSON list.
    :param keywords: its other arguments, as a JSON object; ``inputs: null`` stands for name -> folder of the inputs.
    :raises TypeError: if it returns anything else than a mapping of names to numbers, or None.
    """
    run, given = context(), json.loads(keywords)
    if "inputs" in given and given["inputs"] is None:
        given["inputs"] = {name: str(folder) for name, folder in run.inputs.items()}
    found = function(*json.loads(arguments), **given)
    if found is None:
        return
    try:
        if not isinstance(found, Mapping):
            raise TypeError  # noqa: TRY301  told below, with what it returned
        metrics = {str(name): float(value) for name, value in found.items()}
    except (TypeError, ValueError) as error:
        told = f"{function.__name__} returned {found!r}: return metrics by name, like {{'mae': 0.5}}, or nothing"
        raise TypeError(told) from error
    if run.metrics_file is not None:
        with run.metrics_file.open("a") as file:
            file.write(json.dumps(metrics) + "\n")
