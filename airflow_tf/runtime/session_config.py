"""Make a validated session config effective in this process, before the user's program touches a device.

TF2 programs get it field by field through ``tf.config``; sessions and servers of v1 programs get it merged into
their ``ConfigProto``, where the declaration wins over the script. Either way the effective config is read back, and a
difference is an error: TensorFlow ignores in silence what it does not use.
Nothing here creates the eager context; listing the physical devices is all that the setters need.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

from airflow_tf.core.errors import SessionConfigError

SESSION = "ConfigProto of every session"
NO_GPU = "no GPU here"

_LOG = logging.getLogger("airflow_tf.session_config")
_GPU_FIELDS = ("gpu_options.", "device_count.GPU")


def apply(config: dict[str, Any], *, api: str, memory_bytes: int | None) -> dict[str, Any]:
    """Apply ``config`` and return what was asked and how each field was applied, or passed to TensorFlow.

    :param config: proto JSON with original field names, as the validation returned it.
    :param api: ``tf2``, ``v1`` or ``auto`` (both).
    :param memory_bytes: memory of each of the replica's devices, needed for a memory fraction in TF2.
    :raises SessionConfigError: if TensorFlow refuses a field, was used before, or shows another value afterwards.
    """
    report: dict[str, Any] = {"asked": config, "api": api, "applied": {}, "passed": {}}
    fields = dict(_leaves(config))
    if api in {"tf2", "auto"}:
        _ProgramConfig(fields, memory_bytes).apply(report)
    if api in {"v1", "auto"}:
        _patch_sessions(_SessionDefaults(config))
        for path in fields:
            if api == "v1":
                report["applied" if path in _SETTERS else "passed"][path] = SESSION
            elif path in report["applied"]:
                report["applied"][path] += f" and {SESSION}"
    return report


def _leaves(config: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            yield from _leaves(value, here)
        else:
            yield here, value


def _expect(path: str, asked: object, effective: object) -> None:
    if asked != effective:
        raise SessionConfigError(
            f"session_config.{path}", f"asked for {asked!r}, but TensorFlow uses {effective!r}", "Remove the field."
        )


class _ProgramConfig:
    """Sets the fields of a TF2 program through the public API."""

    def __init__(self, fields: dict[str, Any], memory_bytes: int | None) -> None:
        self._tf: Any = importlib.import_module("tensorflow")
        self._fields = fields
        self._memory_bytes = memory_bytes
        self._gpus: list[Any] = []
        self._checks: dict[str, tuple[object, Callable[[], object]]] = {}

    def apply(self, report: dict[str, Any]) -> None:
        unknown = [path for path in self._fields if path not in _SETTERS]
        if unknown:
            raise SessionConfigError(f"session_config.{unknown[0]}", "the public TF2 API cannot set it", "Set api: v1.")
        passed = [path for path in self._fields if path.startswith(_GPU_FIELDS)]
        if passed and not self._find_gpus(passed[0]):
            report["passed"] = dict.fromkeys(passed, NO_GPU)
        for path, setter in _SETTERS.items():
            if path in self._fields and path not in report["passed"]:
                report["applied"][path] = self._set(path, setter)
        for path, (asked, effective) in self._checks.items():  # at the end, since one field can undo another
            _expect(path, asked, effective())

    def _check(self, path: str, asked: object, effective: Callable[[], object]) -> None:
        self._checks[path] = (asked, effective)

    def _set(self, path: str, setter: Callable[[_ProgramConfig, Any], str]) -> str:
        try:
            return setter(self, self._fields[path])
        except (RuntimeError, ValueError) as error:
            todo = "It must be set before TensorFlow is used: look what runs at import, like sitecustomize."
            raise SessionConfigError(f"session_config.{path}", str(error), todo) from error

    def _find_gpus(self, path: str) -> bool:
        """List the GPUs; False on a CPU slot, an error where there should be one."""
        self._gpus = self._tf.config.list_physical_devices("GPU")
        if not self._gpus and os.environ.get("CUDA_VISIBLE_DEVICES") not in {"-1", ""}:
            raise SessionConfigError(
                f"session_config.{path}",
                "TensorFlow sees no GPU in this process",
                "Check the driver and that the training interpreter has a TensorFlow build for GPUs.",
            )
        return bool(self._gpus)

    def visible(self, value: str) -> str:
        if value:
            self._show([self._gpus[int(index)] for index in value.split(",")])
        return "tf.config.set_visible_devices"

    def gpu_count(self, value: int) -> str:
        self._show(self._gpus[:value])
        return "tf.config.set_visible_devices"

    def _show(self, gpus: list[Any]) -> None:
        self._gpus = gpus
        self._tf.config.set_visible_devices(gpus, "GPU")
        self._check("gpu_options.visible_device_list", gpus, lambda: self._tf.config.get_visible_devices("GPU"))

    def growth(self, value: bool) -> str:  # noqa: FBT001 - the field's value
        for gpu in self._gpus:
            self._tf.config.experimental.set_memory_growth(gpu, value)
        if self._gpus:
            self._check("gpu_options.allow_growth", value, lambda: _context_config().gpu_options.allow_growth)
        return "tf.config.experimental.set_memory_growth"

    def fraction(self, value: float) -> str:
        path = "gpu_options.per_process_gpu_memory_fraction"
        if not value:
            return "left to TensorFlow"
        if self._memory_bytes is None:
            raise ValueError("the device does not report its memory, so that the fraction has no meaning in TF2")
        limit = int(value * self._memory_bytes / 2**20)
        for gpu in self._gpus:
            self._split(gpu, [self._tf.config.LogicalDeviceConfiguration(memory_limit=limit)])
        self._check(path, [[limit]] * len(self._gpus), _memory_limits)
        return f"tf.config.set_logical_device_configuration(memory_limit={limit} MiB)"

    def cpu_count(self, value: int) -> str:
        if value > 1:
            (cpu,) = self._tf.config.list_physical_devices("CPU")
            self._split(cpu, [self._tf.config.LogicalDeviceConfiguration()] * value)
        self._check("device_count.CPU", value, lambda: _context_config().device_count["CPU"])
        return "tf.config.set_logical_device_configuration"

    def _split(self, device: Any, parts: list[Any]) -> None:  # noqa: ANN401 - PhysicalDevice
        self._tf.config.set_logical_device_configuration(device, parts)

    def soft_placement(self, value: bool) -> str:  # noqa: FBT001 - the field's value
        self._tf.config.set_soft_device_placement(value)
        self._check("allow_soft_placement", value, self._tf.config.get_soft_device_placement)
        return "tf.config.set_soft_device_placement"

    def log_placement(self, value: bool) -> str:  # noqa: FBT001 - the field's value
        self._tf.debugging.set_log_device_placement(value)
        self._check("log_device_placement", value, self._tf.debugging.get_log_device_placement)
        return "tf.debugging.set_log_device_placement"

    def intra_op(self, value: int) -> str:
        threading = self._tf.config.threading
        threading.set_intra_op_parallelism_threads(value)
        self._check("intra_op_parallelism_threads", value, threading.get_intra_op_parallelism_threads)
        return "tf.config.threading.set_intra_op_parallelism_threads"

    def inter_op(self, value: int) -> str:
        threading = self._tf.config.threading
        threading.set_inter_op_parallelism_threads(value)
        self._check("inter_op_parallelism_threads", value, threading.get_inter_op_parallelism_threads)
        return "tf.config.threading.set_inter_op_parallelism_threads"


_SETTERS: dict[str, Callable[[_ProgramConfig, Any], str]] = {
    # Devices first: what is visible decides which of them the other fields are set for.
    "gpu_options.visible_device_list": _ProgramConfig.visible,
    "device_count.GPU": _ProgramConfig.gpu_count,
    "gpu_options.allow_growth": _ProgramConfig.growth,
    "gpu_options.per_process_gpu_memory_fraction": _ProgramConfig.fraction,
    "device_count.CPU": _ProgramConfig.cpu_count,
    "allow_soft_placement": _ProgramConfig.soft_placement,
    "log_device_placement": _ProgramConfig.log_placement,
    "intra_op_parallelism_threads": _ProgramConfig.intra_op,
    "inter_op_parallelism_threads": _ProgramConfig.inter_op,
}


class _SessionDefaults:
    """The declared config as the base of every session's ConfigProto."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config_class = importlib.import_module("tensorflow").compat.v1.ConfigProto
        self._parse = importlib.import_module("google.protobuf.json_format").ParseDict
        self._declared = config
        self._asked = self._parse(config, self._config_class())
        self._paths = [path for path, _ in _leaves(config)]
        self._reported: set[str] = set()

    def merged(self, script: Any, default: Callable[[], Any]) -> Any:  # noqa: ANN401 - ConfigProto
        """Return a copy of a script's config, or of the default, with every declared field at its declared value."""
        if script is not None and not isinstance(script, self._config_class):
            return script  # for TensorFlow to refuse
        result = self._config_class()
        result.CopyFrom(default() if script is None else script)
        if script is None and self._asked.gpu_options.per_process_gpu_memory_fraction:
            # The default repeats the limit which the TF2 part made of the fraction; the two exclude each other.
            result.gpu_options.experimental.ClearField("virtual_devices")
        for path in self._paths:
            if script is not None:
                self._report_conflict(path, _value(script, path))
            _clear(result, path)
        return self._parse(self._declared, result)

    def check(self, effective: Any) -> None:  # noqa: ANN401 - ConfigProto
        """Compare every declared field with the config in use."""
        for path in self._paths:
            _expect(path, _value(self._asked, path), _value(effective, path))

    def check_devices(self, devices: list[Any]) -> None:
        """Compare the number of CPU devices of a local session with the declared one."""
        if "CPU" in self._asked.device_count:
            found = sum(device.device_type == "CPU" for device in devices)
            _expect("device_count.CPU", self._asked.device_count["CPU"], found)

    def _report_conflict(self, path: str, theirs: object) -> None:
        """Say once that a program's own value is replaced; an unset field is equal to its type's default."""
        ours = _value(self._asked, path)
        if theirs not in (ours, _value(self._config_class(), path)) and path not in self._reported:
            self._reported.add(path)
            _LOG.warning("session_config.%s: %r of the declaration replaces %r of the program", path, ours, theirs)


def _parent(message: Any, path: str) -> tuple[Any, str]:  # noqa: ANN401 - message or map
    *parents, name = path.split(".")
    for parent in parents:
        message = getattr(message, parent)
    return message, name


def _value(message: Any, path: str) -> Any:  # noqa: ANN401 - a field's value
    """Return the value at a path; keys of a map count as names."""
    holder, name = _parent(message, path)
    if not hasattr(holder, "DESCRIPTOR"):
        return holder.get(name)
    value = getattr(holder, name)
    return list(value) if holder.DESCRIPTOR.fields_by_name[name].is_repeated else value


def _clear(message: Any, path: str) -> None:  # noqa: ANN401 - ConfigProto
    holder, name = _parent(message, path)
    if hasattr(holder, "DESCRIPTOR"):
        holder.ClearField(name)
    else:
        holder.pop(name, None)


def _context_config() -> Any:  # noqa: ANN401 - ConfigProto
    """Return what TensorFlow uses itself where a program gives no config; there is no public way to it."""
    return importlib.import_module("tensorflow.python.eager.context").context().config


def _memory_limits() -> list[list[float]]:
    """Return the memory limits, in MiB, of each GPU's logical devices."""
    return [list(entry.memory_limit_mb) for entry in _context_config().gpu_options.experimental.virtual_devices]


def _patch_sessions(defaults: _SessionDefaults) -> None:
    """Let every session and server of this process start from the declared config.

    The constructors are replaced on the classes, since MonitoredTrainingSession, Supervisor and Keras make their
    sessions from the same ones.
    """
    v1 = importlib.import_module("tensorflow").compat.v1
    growing = v1.ConfigProto(gpu_options=v1.GPUOptions(allow_growth=True))  # InteractiveSession's own default
    _patch_session(v1.Session, defaults, _context_config)
    _patch_session(v1.InteractiveSession, defaults, lambda: growing)
    _patch_server(v1.train.Server, defaults, v1.ConfigProto)


def _patch_session(cls: Any, defaults: _SessionDefaults, default: Callable[[], Any]) -> None:  # noqa: ANN401
    original = cls.__init__

    @functools.wraps(original)
    def __init__(self: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:  # noqa: ANN401, N807
        original(self, target, graph, defaults.merged(config, default))
        defaults.check(self._config)
        if not target:
            defaults.check_devices(self.list_devices())

    cls.__init__ = __init__


def _patch_server(cls: Any, defaults: _SessionDefaults, default: Callable[[], Any]) -> None:  # noqa: ANN401
    original = cls.__init__

    @functools.wraps(original)
    def __init__(self: Any, server_or_cluster_def: Any, *args: Any, **options: Any) -> None:  # noqa: ANN401, N807
        names = ("job_name", "task_index", "protocol", "config", "start")
        options |= dict(zip(names, args, strict=False))
        merged = defaults.merged(options.pop("config", None), default)
        original(self, server_or_cluster_def, config=merged, **options)
        defaults.check(self.server_def.default_session_config)

    cls.__init__ = __init__
