"""Which call sets which field, for TF2 programs, for sessions, or for both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_tf.core.session_config.types import ConfigContext, FieldPlan, Problem

SESSION = "ConfigProto of every session"
NO_GPU = "no GPU here"
_LOGICAL = "tf.config.set_logical_device_configuration"
_VISIBLE = "tf.config.set_visible_devices"

APPLIED = {
    "allow_soft_placement": "tf.config.set_soft_device_placement",
    "log_device_placement": "tf.debugging.set_log_device_placement",
    "intra_op_parallelism_threads": "tf.config.threading.set_intra_op_parallelism_threads",
    "inter_op_parallelism_threads": "tf.config.threading.set_inter_op_parallelism_threads",
    "device_count.CPU": _LOGICAL,
    "device_count.GPU": _VISIBLE,
    "gpu_options.allow_growth": "tf.config.experimental.set_memory_growth",
    "gpu_options.per_process_gpu_memory_fraction": f"{_LOGICAL}(memory_limit)",
    "gpu_options.visible_device_list": _VISIBLE,
}
"""Fields that airflow_tf sets and reads back, with the TF2 call that does it."""

# Prefix of a field that the public TF2 API cannot set -> what does it instead. The first match counts.
_REMEDIES = (
    ("gpu_options.allocator_type", "Set TF_GPU_ALLOCATOR in environment instead"),
    (
        "gpu_options.experimental.use_cuda_malloc_async",
        "Set TF_GPU_ALLOCATOR: cuda_malloc_async in environment instead",
    ),
    ("gpu_options.experimental.virtual_devices", f"Call {_LOGICAL} in the program"),
    ("graph_options.optimizer_options.global_jit_level", "Call tf.config.optimizer.set_jit in the program"),
    ("graph_options.rewrite_options", "Call tf.config.optimizer.set_experimental_options in the program"),
    ("operation_timeout_in_ms", "TensorFlow enforces it in sessions only: drop it"),
    ("device_filters", "Pass tf.config.experimental.ClusterDeviceFilters when connecting to the cluster"),
    ("", "Drop it"),
)


def leaves(config: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every field with its path; a list is one field, a map one field per key."""
    for name, value in config.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            yield from leaves(value, here)
        else:
            yield here, value


def plan(config: dict[str, Any], context: ConfigContext) -> Iterator[FieldPlan | Problem]:
    """Yield for every field how it reaches the program, or why it cannot."""
    for path, value in leaves(config):
        yield _field(path, value, context)


def _field(path: str, value: Any, context: ConfigContext) -> FieldPlan | Problem:  # noqa: ANN401 - any field
    if context.api == "v1":
        return FieldPlan(path, value, "applied" if path in APPLIED else "passed", SESSION)
    if path not in APPLIED:
        remedy = next(text for prefix, text in _REMEDIES if path.startswith(prefix))
        return Problem(
            path, "the public TF2 API cannot set it", f"{remedy}, or set api: v1 if the program uses sessions."
        )
    if context.gpus == 0 and path.startswith(("gpu_options.", "device_count.GPU")):
        return FieldPlan(path, value, "passed", NO_GPU)
    if path == "gpu_options.per_process_gpu_memory_fraction" and value and context.memory_bytes is None:
        why = "the TF2 API needs the limit in bytes, and the device does not report its memory"
        todo = "Set devices.share: 1" if context.shares_gpus else "Use gpu_options.allow_growth"
        return Problem(path, why, f"{todo}, or set api: v1 if the program uses sessions.")
    by = APPLIED[path] if context.api == "tf2" else f"{APPLIED[path]} and {SESSION}"
    return FieldPlan(path, value, "applied", by)
