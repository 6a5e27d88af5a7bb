"""The checkpoint that a training begins with: declared, or what another training of the same run has made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_tf.core.checkpoint.methods import AVERAGE, TOP_K
from airflow_tf.core.errors import CheckpointError
from airflow_tf.operators.candidates import choose, pull


def initial_source(declared: Mapping[str, Any] | None, ti: Any) -> tuple[str, str]:  # noqa: ANN401 (Airflow's own)
    """Return the URI of the checkpoint to begin with, empty where there is none, and what tells it from others there.

    What another training has made appears at the same place when that training is cleared and made again.

    :param declared: ``{"source": uri}``, with ``digest`` of what is there if that is known; or ``{"from_task": id of an
        aggregation}``, with ``evaluation_task``, ``metric`` and ``mode`` where an evaluation chooses among its
        candidates.
    :raises CheckpointError: if the other training has left nothing, or left it on another host.
    """
    if declared is None or "from_task" not in declared:
        given = declared or {}
        return str(given.get("source") or ""), str(given.get("digest") or "")
    from_task = declared["from_task"]
    aggregated, evaluation = pull(ti, from_task, declared.get("evaluation_task"))
    name = choose(aggregated, evaluation, declared.get("metric"), declared.get("mode", "min"))
    if evaluation is None and name in {AVERAGE, TOP_K} and aggregated.get("same_start") is False:
        raise CheckpointError(
            f"training does not begin with the {name} that task {from_task!r} has made",
            "its replicas began with different weights, and no evaluation shows that it is any good",
            "Begin with the same weights (a seed, or initial_checkpoint), or add an evaluate section.",
        )
    prefix = aggregated["candidates"][name]
    try:
        index = Path(f"{prefix}.index").stat()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"the checkpoint that task {from_task!r} has made is not on this host",
            f"there is no {prefix}.index",
            "Let that training publish (checkpoints.publish): then it is fetched from there.",
        ) from error
    return f"file://{prefix}", f"{index.st_ino} {index.st_mtime_ns}"
