"""Keras 3 ``fit`` on several processes: repaired where it can be, refused with the reason where it cannot.

Everything here depends on Keras' internals: one module, for the versions that were tried. A test fails as soon as
``fit`` works without it.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from airflow_tf.core.errors import DeclarationError

VERSIONS = ((3, 15), (3, 15))
"""First and last minor version of Keras in which the repair was tried."""

_TRAINER = "keras.src.backend.tensorflow.trainer"
_TODO = "Install tf-keras and set environment.TF_USE_LEGACY_KERAS: '1', or train in a custom loop."


def allow() -> None:
    """Make ``fit``, ``evaluate`` and ``predict`` work under MultiWorkerMirroredStrategy; refuse ``fit`` elsewhere."""
    if _is_legacy():
        return
    version = tuple(int(part) for part in importlib.import_module("keras").__version__.split(".")[:2])
    if VERSIONS[0] <= version <= VERSIONS[1]:
        repair()
    else:
        shown = ".".join(map(str, version))
        _refuse(f"Keras {shown} cannot fit a model on several processes", "its internals are unknown to us")


def refuse_with_parameter_servers() -> None:
    """Refuse ``fit`` in the chief of a parameter server cluster.

    Keras 3 asks for a per-worker dataset that it cannot read, and counts steps by ``assign(self + 1)``, which loses
    updates between workers.
    """
    if not _is_legacy():
        _refuse("Keras 3 cannot fit a model with parameter servers", "it reads no per-worker dataset and loses updates")


def repair() -> None:
    """Replace the two functions of Keras' trainer that fail when values live in several processes."""
    trainer: Any = importlib.import_module(_TRAINER)
    cls = trainer.TensorFlowTrainer
    if getattr(cls, "_airflow_tf_repaired", False):
        return
    cls._maybe_symbolic_build = _building(cls._maybe_symbolic_build)
    trainer.reduce_per_replica = functools.wraps(trainer.reduce_per_replica)(
        functools.partial(_reduce, trainer.reduce_per_replica)
    )
    cls._airflow_tf_repaired = True


def _building(original: Callable[..., None]) -> Callable[..., None]:
    """Build from this process's part of a batch: Keras hands on a PerReplica value, which is no tensor."""

    @functools.wraps(original)
    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:  # noqa: ANN401
        strategy = self._distribute_strategy
        trainer = importlib.import_module(_TRAINER)
        if strategy is None or iterator is None or not trainer._collective_all_reduce_multi_worker(strategy):  # noqa: SLF001
            original(self, iterator=iterator, data_batch=data_batch)
            return
        for _, _, batches in iterator:
            local = trainer.tree.map_structure(
                lambda value: strategy.experimental_local_results(value)[0], next(batches)
            )
            original(self, data_batch=local)
            return

    return _maybe_symbolic_build


def _reduce(original: Callable[..., Any], values: Any, strategy: Any, reduction: str) -> Any:  # noqa: ANN401
    """Take the mean over all processes of scalars: Keras asks for the mean along an axis that they do not have."""
    trainer = importlib.import_module(_TRAINER)
    if reduction == "auto" and trainer._collective_all_reduce_multi_worker(strategy):  # noqa: SLF001 (no public way)
        return trainer.tree.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), values)
    return original(values, strategy, reduction)


def _is_legacy() -> bool:
    return os.environ.get("TF_USE_LEGACY_KERAS", "") in {"1", "true", "True"}


def _refuse(what: str, why: str) -> None:
    def fit(*_: object, **__: object) -> None:
        raise DeclarationError(what, why, _TODO)

    importlib.import_module(_TRAINER).TensorFlowTrainer.fit = fit
