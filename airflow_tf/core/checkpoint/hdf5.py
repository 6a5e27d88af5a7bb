"""Average what Keras 3 saves: ``.weights.h5``, and ``.keras``, an uncompressed zip with one in it.

Needs h5py, which TensorFlow brings along. HDF5 has no checksums: reading a file whole finds what is cut off, not a
changed number; in a ``.keras`` file the zip's CRC-32 does.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np

from airflow_tf.core.checkpoint.dtypes import DTYPES
from airflow_tf.core.checkpoint.numeric import decode, encode, has_mean, mean
from airflow_tf.core.checkpoint.rules import MEAN, refuse_differences
from airflow_tf.core.durable import sync_folder
from airflow_tf.core.errors import CheckpointError

KERAS, WEIGHTS = ".keras", ".weights.h5"
_INNER = "model.weights.h5"
_ITERATIONS = "optimizer/vars/0"
_PIECE_BYTES = 4 * 2**20
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_NUMBERS = {dtype.name: number for number, dtype in DTYPES.items()} | {"float16": 19, "float32": 1, "float64": 2}


def is_keras(path: str) -> bool:
    """Tell whether a path is one of these files, by its name."""
    return path.endswith((KERAS, WEIGHTS))


def verify_keras(path: str) -> None:
    """Read a file whole.

    :raises CheckpointError: if it is cut off, damaged or something else.
    """
    with _Weights(path) as weights:
        for name in weights.datasets:
            for _ in weights.pieces(name):
                pass


def average_keras(paths: Sequence[str], destination: str, shares: Sequence[float] = ()) -> dict[str, str]:
    """Write the mean of files of one kind to ``destination``; return tensor -> ``mean`` or ``copied``.

    Whatever has no mean is that of the file that trained longest. The same inputs give the same bytes.

    :param shares: one per file, adding up to 1; without them all count the same.
    :raises CheckpointError: if one is damaged, they differ in structure, or a value is not finite.
    """
    with ExitStack() as stack:
        opened = [stack.enter_context(_Weights(path)) for path in paths]
        for other in opened[1:]:
            refuse_differences(_differences(opened[0], other))
        target = Path(destination)
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=target.parent, prefix=".averaging-")))
        result = folder / _INNER
        source = max(opened, key=lambda weights: weights.step())
        shutil.copyfile(source.file_path, result)
        rules = _overwrite(result, opened, shares)
        if destination.endswith(KERAS):
            result = _zip(Path(source.path), result, folder / "whole")
        _flush(result)
        result.replace(target)
        sync_folder(target.parent)
        return rules


class _Weights:
    """One open file of weights; that of a ``.keras`` file is unpacked beside it while it is open."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._stack = ExitStack()
        try:
            self.file_path = self._unpacked() if path.endswith(KERAS) else Path(path)
            self.file = self._stack.enter_context(_h5py().File(self.file_path, "r"))
            self.datasets = dict(sorted(_datasets(self.file)))
        except (OSError, KeyError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
            self._stack.close()
            raise self.broken(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _unpacked(self) -> Path:
        with zipfile.ZipFile(self.path) as whole:
            if bad := whole.testzip():
                raise ValueError(f"the checksum of {bad} does not match")
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="airflow_tf-keras-"))
            return Path(whole.extract(_INNER, folder))

    def broken(self, error: Exception) -> CheckpointError:
        return CheckpointError(f"checkpoint {self.path} cannot be read", str(error), "Use another checkpoint.")

    def step(self) -> int:
        """Return the optimizer's iterations, the first of its variables; 0 where they are not saved."""
        dataset = self.datasets.get(_ITERATIONS)
        return int(dataset[()]) if dataset is not None and dataset.shape == () and dataset.dtype.kind in "iu" else 0

    def dtype(self, name: str) -> int:
        """Return TensorFlow's number of a tensor's type: Keras keeps bfloat16 as opaque bytes and says so."""
        dataset = self.datasets[name]
        said = dataset.attrs.get("dtype", dataset.dtype.name)
        return _NUMBERS.get(said.decode() if isinstance(said, bytes) else str(said), 0)

    def pieces(self, name: str) -> Iterator[tuple[Any, bytes]]:
        """Yield a tensor's bytes by pieces of rows, each with its place."""
        dataset = self.datasets[name]
        rows = dataset.shape[0] if dataset.shape else 0
        row_bytes = max(dataset.nbytes // rows, 1) if rows else 1
        step = max(_PIECE_BYTES // row_bytes, 1)
        places: list[Any] = [()] if not dataset.shape else [slice(at, at + step) for at in range(0, rows, step)]
        try:
            for place in places:
                yield place, np.asarray(dataset[place]).tobytes()
        except OSError as error:
            raise self.broken(error) from error


def _h5py() -> Any:  # noqa: ANN401 (a module without types)
    try:
        import h5py  # noqa: PLC0415 (only where such a file is met)
    except ImportError as error:
        why = "h5py is not installed"
        raise CheckpointError("Keras files cannot be read", why, "Install h5py; TensorFlow brings it.") from error
    return h5py


def _datasets(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 (h5py has no types)
    for name, item in group.items():
        if hasattr(item, "items"):
            yield from _datasets(item, f"{path}{name}/")
        else:
            yield f"{path}{name}", item


def _differences(first: _Weights, other: _Weights) -> list[str]:
    def form(weights: _Weights, name: str) -> str:
        dataset = weights.datasets.get(name)
        return "missing" if dataset is None else f"{dataset.attrs.get('dtype', dataset.dtype)} {list(dataset.shape)}"

    return [
        f"{name}: {form(first, name)} in {first.path}, {form(other, name)} in {other.path}"
        for name in sorted(first.datasets.keys() | other.datasets.keys())
        if form(first, name) != form(other, name)
    ]


def _overwrite(result: Path, opened: Sequence[_Weights], shares: Sequence[float]) -> dict[str, str]:
    rules = {}
    with _h5py().File(result, "r+") as out:
        for name in opened[0].datasets:
            number = opened[0].dtype(name)
            rules[name] = MEAN if number and has_mean(number) else "copied"
            if rules[name] != MEAN:
                continue
            target = out[name]
            for pieces in zip(*(weights.pieces(name) for weights in opened), strict=True):
                place = pieces[0][0]
                parts = [decode(number, data) for _, data in pieces]
                value = mean(number, parts, shares)
                if not np.isfinite(value).all():
                    bad = [w.path for w, part in zip(opened, parts, strict=True) if not np.isfinite(part).all()]
                    why = f"{name!r} has NaN or infinite values in {', '.join(bad) or 'the sum'}"
                    raise CheckpointError("checkpoints cannot be averaged", why, "Leave that replica out.")
                shape = target[place].shape
                target[place] = np.frombuffer(encode(number, value), target.dtype).reshape(shape)
    return rules


def _zip(source: Path, weights: Path, target: Path) -> Path:
    """Write a ``.keras`` file with the source's other members and these weights."""
    with zipfile.ZipFile(source) as given, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as out:
        for name in sorted(given.namelist()):
            info = zipfile.ZipInfo(name, _ZIP_TIME)
            content = weights if name == _INNER else None
            with (
                out.open(info, "w", force_zip64=True) as file,
                content.open("rb") if content else given.open(name) as of,
            ):
                shutil.copyfileobj(of, file)
    return target


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
