"""Run TensorFlow-1 programs as they were written: ``import tensorflow as tf`` gives them the v1 API.

Only the program's own modules see it; installed packages, Keras among them, keep the TensorFlow that they import.
"""

from __future__ import annotations

import builtins
import importlib
import logging
import sys
import sysconfig
import types
from collections.abc import Mapping, Sequence
from typing import Any

RENAMED = {
    "all_variables": "global_variables",
    "audio_summary": "summary.audio",
    "batch_cholesky": "cholesky",
    "batch_matmul": "matmul",
    "complex_abs": "abs",
    "histogram_summary": "summary.histogram",
    "image_summary": "summary.image",
    "initialize_all_tables": "tables_initializer",
    "initialize_all_variables": "global_variables_initializer",
    "initialize_local_variables": "local_variables_initializer",
    "initialize_variables": "variables_initializer",
    "inv": "reciprocal",
    "merge_all_summaries": "summary.merge_all",
    "merge_summary": "summary.merge",
    "mul": "multiply",
    "neg": "negative",
    "pack": "stack",
    "scalar_summary": "summary.scalar",
    "select": "where",
    "sub": "subtract",
    "train.SummaryWriter": "summary.FileWriter",
    "unpack": "unstack",
}
"""Name before TensorFlow 1.0 -> the same function, with the same order of arguments, in ``tf.compat.v1``."""

_LOG = logging.getLogger("airflow_tf.v1")


class _Module(types.ModuleType):
    """The v1 API, or a part of it, with the old names."""

    def __init__(self, original: types.ModuleType, path: str, said: set[str]) -> None:
        super().__init__(f"tensorflow.{path}".rstrip("."), original.__doc__)  # by which Python finds its packages
        self.__dict__.update(_original=original, _path=path, _said=said)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever TensorFlow has there)
        own = self.__dict__
        path = f"{own['_path']}{name}"
        if path == "train":
            value: Any = _Module(own["_original"].train, "train.", own["_said"])
        elif path in RENAMED:
            value = _resolve(RENAMED[path])
            if path not in own["_said"]:
                own["_said"].add(path)
                _LOG.warning("tf.%s was removed in TensorFlow 1.0: tf.%s is used", path, RENAMED[path])
        else:
            return getattr(own["_original"], name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*dir(self.__dict__["_original"]), *(name for name in RENAMED if "." not in name)})


def _resolve(path: str) -> Any:  # noqa: ANN401 (whatever TensorFlow has there)
    value: Any = importlib.import_module("tensorflow").compat.v1
    for name in path.split("."):
        value = getattr(value, name)
    return value


def install() -> None:
    """Turn v2 behaviour off, and give the program's modules the v1 API as ``tensorflow``.

    The import statement is intercepted, not ``sys.modules``: TensorFlow and Keras import parts of themselves late.
    """
    logging.basicConfig(format="%(name)s: %(message)s")
    tf = importlib.import_module("tensorflow")
    tf.compat.v1.disable_v2_behavior()
    facade = _Module(tf.compat.v1, "", set())
    original = builtins.__import__
    installed = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})

    def import_v1(
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 (the hook's own names)
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        found = original(name, globals, locals, fromlist or (), level)
        if found is tf and not _is_installed(globals, installed):
            return facade
        return found

    builtins.__import__ = import_v1


def _is_installed(namespace: Mapping[str, object] | None, folders: tuple[str, ...]) -> bool:
    """Tell whether the importing module comes from an installed package, this one included."""
    name = str((namespace or {}).get("__name__", ""))
    file = str((namespace or {}).get("__file__", ""))
    own = sys.modules["airflow_tf"].__file__
    return name.startswith("airflow_tf.") or file == own or file.startswith(folders)
