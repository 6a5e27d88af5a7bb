"""Ranges and contradictions that TensorFlow does not check, or checks by aborting the process.

One row of :data:`RULES` is one check: a function from the parsed config and the context to its findings. To add a
check, write the function, add the row, and add a case to tests/session_config/cases.jsonl.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from airflow_tf.core.session_config.types import WHOLE_PERCENT, ConfigContext, Problem

TINY_FRACTION = 0.05
TINY_LIMIT_MB = 64
_ROUNDING_PERCENT = 1e-4
EXECUTORS = ("", "DEFAULT", "SINGLE_THREADED_EXECUTOR")
STREAM_PRIORITIES = range(-2, 1)  # what NVIDIA devices take

_DEVICE_FILTER = re.compile(
    r"(/job:(?P<job>[A-Za-z][A-Za-z0-9_]*))?(/replica:([0-9]+|\*))?(/task:([0-9]+|\*))?"
    r"(/device:[A-Za-z_]+:([0-9]+|\*)|/[cg]pu:([0-9]+|\*))?",
    re.IGNORECASE,
)

_FRACTION = "gpu_options.per_process_gpu_memory_fraction"
_VISIBLE = "gpu_options.visible_device_list"
_VIRTUAL = "gpu_options.experimental.virtual_devices"


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's verdict: an error refuses the config, a warning is shown with it."""

    problem: Problem
    is_error: bool = True


def error(path: str, why: str, todo: str = "") -> Finding:
    """Return a finding that refuses the config."""
    return Finding(Problem(path, why, todo))


def warning(path: str, why: str, todo: str = "") -> Finding:
    """Return a finding that only warns."""
    return Finding(Problem(path, why, todo), is_error=False)


def lookup(config: dict[str, Any], path: str) -> Any:  # noqa: ANN401 - fields have many types
    """Return the value at a dotted path, None if unset."""
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def visible_indices(config: dict[str, Any]) -> list[int] | None:
    """Return the indices of ``visible_device_list``, None if unset, empty or malformed."""
    entries = [entry.strip() for entry in (lookup(config, _VISIBLE) or "").split(",")]
    return [int(entry) for entry in entries] if all(_is_index(entry) for entry in entries) else None


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _fraction(config: dict[str, Any], _context: ConfigContext) -> Iterator[Finding]:
    for options in ("gpu_options", "pluggable_device_options"):
        path = f"{options}.per_process_gpu_memory_fraction"
        value = lookup(config, path) or 0.0  # 0 leaves the choice to TensorFlow
        unified = lookup(config, f"{options}.experimental.use_unified_memory")
        if value < 0:
            yield error(path, f"{value} is negative", "Give a share of the device's memory, above 0 and at most 1.")
        elif value > 1 and not unified:
            why = f"{value} is more than the whole device; above 1 TensorFlow silently switches to unified memory"
            yield error(
                path, why, "Give a share above 0 and at most 1, or set experimental.use_unified_memory: true as well."
            )
        elif value > 1:
            yield warning(path, f"{value} oversubscribes the device by unified memory, which is slow")
        elif 0 < value < TINY_FRACTION:
            yield warning(path, f"{value} is a very small share of the device")


def _share(config: dict[str, Any], context: ConfigContext) -> Iterator[Finding]:
    value = lookup(config, _FRACTION) or 0.0
    if context.shares_gpus and value * WHOLE_PERCENT > context.share_percent + _ROUNDING_PERCENT:
        why = f"{value} is more than this replica's share of the device, {context.share_percent / WHOLE_PERCENT}"
        yield error(_FRACTION, why, "Lower it, leave it out to get the share, or raise devices.share.")


def limit_to_share(config: dict[str, Any], context: ConfigContext) -> dict[str, Any]:
    """Return the config with the replica's share of its GPUs as memory fraction, where it sets no limit itself."""
    if not context.shares_gpus or lookup(config, _FRACTION) or lookup(config, _VIRTUAL):
        return config
    fraction = {"per_process_gpu_memory_fraction": context.share_percent / WHOLE_PERCENT}
    return config | {"gpu_options": config.get("gpu_options", {}) | fraction}


def _visible_devices(config: dict[str, Any], context: ConfigContext) -> Iterator[Finding]:
    text = lookup(config, _VISIBLE)
    if not text:
        return
    indices = visible_indices(config)
    if indices is None:
        yield error(
            _VISIBLE,
            f'"{text}" is not a comma separated list of device indices',
            'Count from 0 within this replica\'s own devices, like "0" or "0,1".',
        )
        return
    if len(set(indices)) < len(indices):
        yield error(_VISIBLE, f'"{text}" names a device twice', "Name each device once.")
    beyond = [index for index in indices if index >= context.gpus]
    if beyond and context.gpus:
        own = "1 device (index 0)" if context.gpus == 1 else f"{context.gpus} devices (0 to {context.gpus - 1})"
        yield error(
            _VISIBLE,
            f'"{text}" names device {beyond[0]}, but this replica sees {own}',
            "Count within this replica's own devices, not over the host's.",
        )


def _device_count(config: dict[str, Any], context: ConfigContext) -> Iterator[Finding]:
    for name, count in (lookup(config, "device_count") or {}).items():
        path = f"device_count.{name}"
        if name not in {"CPU", "GPU"} and name.upper() in {"CPU", "GPU"}:
            yield error(
                path, "TensorFlow ignores device types that it does not know", f'Did you mean "{name.upper()}"?'
            )
        elif count < 0:
            yield error(path, f"{count} is negative", "Give the number of devices.")
        elif name == "CPU" and count == 0:
            yield error(path, "a program cannot run without a CPU device", "Give at least 1.")
        elif name == "GPU" and context.gpus and count > context.gpus:
            yield error(path, f"{count} devices, but this replica has {context.gpus}", "Reserve more, or lower it.")


def _threads(config: dict[str, Any], context: ConfigContext) -> Iterator[Finding]:
    intra, inter = "intra_op_parallelism_threads", "inter_op_parallelism_threads"
    todo = "Give a number of threads, or 0 to leave the choice to TensorFlow."
    if (lookup(config, intra) or 0) < 0:
        yield error(intra, "a negative number makes TensorFlow abort the process", todo)
    count = lookup(config, inter) or 0
    if count == -1 and context.api == "v1" and not context.has_server:
        yield warning(inter, "-1 runs all operations in the caller's thread")
    elif count < 0:
        why = "a negative number makes a TensorFlow server abort the process" if context.has_server else "is negative"
        yield error(inter, f"{count}: {why}", todo)
    for index, pool in enumerate(lookup(config, "session_inter_op_thread_pool") or []):
        if pool.get("num_threads", 0) < 0:
            yield error(f"session_inter_op_thread_pool[{index}].num_threads", "is negative", todo)
    if lookup(config, "use_per_session_threads"):
        yield warning("use_per_session_threads", "is deprecated by TensorFlow", "Use session_inter_op_thread_pool.")


def _virtual_devices(config: dict[str, Any], context: ConfigContext) -> Iterator[Finding]:
    entries = lookup(config, _VIRTUAL)
    if not entries:
        return
    if lookup(config, _FRACTION):
        yield error(
            _VIRTUAL, "memory limits and per_process_gpu_memory_fraction exclude each other", "Keep one of them."
        )
    if lookup(config, "gpu_options.allow_growth"):
        yield warning(_VIRTUAL, "memory limits are reached by growth; the TF2 API refuses the two together")
    used = _used_gpus(config, context)
    if context.gpus and len(entries) != used:
        yield error(
            _VIRTUAL,
            f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'} for {used} devices",
            "Give one entry per device that the program sees.",
        )
    for index, entry in enumerate(entries):
        yield from _virtual_device(f"{_VIRTUAL}[{index}]", entry, context)


def _used_gpus(config: dict[str, Any], context: ConfigContext) -> int:
    visible = visible_indices(config)
    count = context.gpus if visible is None else len(visible)
    limit = lookup(config, "device_count.GPU")
    return count if limit is None else min(count, limit)


def _virtual_device(path: str, entry: dict[str, Any], context: ConfigContext) -> Iterator[Finding]:
    limits = entry.get("memory_limit_mb", [])
    for name in ("priority", "device_ordinal"):
        values = entry.get(name, [])
        if values and len(values) != len(limits):
            yield error(f"{path}.{name}", f"{len(values)} values for {len(limits)} memory limits", "Give one for each.")
    outside = [value for value in entry.get("priority", []) if value not in STREAM_PRIORITIES]
    if outside:
        yield error(f"{path}.priority", f"{outside[0]} is outside -2..0, the range of NVIDIA devices")
    if any(limit <= 0 for limit in limits):
        yield error(f"{path}.memory_limit_mb", "a limit must be above 0 MB")
    elif any(limit < TINY_LIMIT_MB for limit in limits):
        yield warning(f"{path}.memory_limit_mb", f"a limit below {TINY_LIMIT_MB} MB is hardly usable")
    if context.shares_gpus and not limits:
        yield error(path, "the replica has only a share of the device", "Give memory_limit_mb.")
    if context.memory_bytes is not None:
        share = context.share_percent if context.shares_gpus else WHOLE_PERCENT
        usable = context.memory_bytes * share / WHOLE_PERCENT / 2**20
        if sum(limits) > usable:
            owner = "the replica's share" if context.shares_gpus else "the device"
            why = f"{sum(limits):.0f} MB in all, but {owner} has {usable:.0f} MB"
            yield error(f"{path}.memory_limit_mb", why, "Lower the limits.")


def _device_filters(config: dict[str, Any], context: ConfigContext) -> Iterator[Finding]:
    """Judge what TensorFlow explains by a session that never sees its parameter servers."""
    for index, text in enumerate(lookup(config, "device_filters") or []):
        path = f"device_filters[{index}]"
        match = _DEVICE_FILTER.fullmatch(text)
        if match is None:
            yield error(path, f'"{text}" is not a device name', 'Write it like "/job:ps" or "/job:worker/task:0".')
        elif context.roles and match["job"] and match["job"] not in context.roles:
            why = f'"{text}" names a job that the cluster does not have'
            yield error(path, why, f"Its jobs are {', '.join(context.roles)}.")


def _executor(config: dict[str, Any], _context: ConfigContext) -> Iterator[Finding]:
    path = "experimental.executor_type"
    value = lookup(config, path) or ""
    if value not in EXECUTORS:
        yield error(path, f'"{value}" is unknown and fails at the first step', f"Use {' or '.join(EXECUTORS[1:])}.")


def _never_negative(config: dict[str, Any], _context: ConfigContext) -> Iterator[Finding]:
    for path in ("operation_timeout_in_ms", "gpu_options.deferred_deletion_bytes", "placement_period"):
        value = lookup(config, path) or 0
        if value < 0:
            yield error(path, f"{value} is negative", "Give 0 or more; 0 leaves the choice to TensorFlow.")


def _operation_timeout(config: dict[str, Any], context: ConfigContext) -> Iterator[Finding]:
    path = "operation_timeout_in_ms"
    if lookup(config, path) and context.has_server:
        yield warning(path, "does not bound the start of a session", "A missing peer is found by the gang's own limit.")


def _two_apis(config: dict[str, Any], context: ConfigContext) -> Iterator[Finding]:
    """Judge combinations which only TF2's own rules forbid; sources are in tensorflow/python/eager/context.py."""
    if context.api == "v1":
        return
    growth = lookup(config, "gpu_options.allow_growth")
    todo = "Drop one of them, or set api: v1 if the program uses sessions."
    if growth and lookup(config, _FRACTION):
        fraction = "the replica's share of the device" if context.shares_gpus else "the fraction"
        why = f"the TF2 API turns {fraction} into a memory limit, and refuses growth together with a limit"
        yield error("gpu_options.allow_growth", why, todo)
    if growth and (lookup(config, "device_count.CPU") or 1) > 1:
        why = "TF2 drops growth without a word when the CPU is split by device_count.CPU"
        yield error("gpu_options.allow_growth", why, todo)
    indices = visible_indices(config) or []
    if indices != sorted(indices):
        yield error(_VISIBLE, "the TF2 API cannot reorder devices", "List them in ascending order, or set api: v1.")
    if lookup(config, "device_count.GPU") == 0 and indices:
        yield warning("device_count.GPU", "0 hides the devices of visible_device_list too")


Rule = Callable[[dict[str, Any], ConfigContext], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    _fraction,
    _share,
    _visible_devices,
    _device_count,
    _threads,
    _virtual_devices,
    _device_filters,
    _executor,
    _never_negative,
    _operation_timeout,
    _two_apis,
)
