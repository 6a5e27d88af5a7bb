"""Which checkpoint of a folder can be trusted: whole, and with every checksum right."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format

from airflow_tf.core.checkpoint.bundle import BundleReader
from airflow_tf.core.descriptors import message_class
from airflow_tf.core.durable import sync_folder
from airflow_tf.core.errors import CheckpointError

STATE_FILE = "checkpoint"
"""TensorFlow's own note, in the folder, of which checkpoint is the latest."""

_STEP = re.compile(r"-(\d+)$")


@dataclass(frozen=True, slots=True)
class SkippedCheckpoint:
    """A checkpoint, or a state file, that was passed over, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class LatestCheckpoint:
    """The newest complete checkpoint, and what was newer but is not to be trusted.

    ``prefix`` None with something skipped means: there was training before, and its state is lost. A caller must not
    start from scratch then without being told to.
    """

    prefix: str | None
    skipped: tuple[SkippedCheckpoint, ...] = ()


def verify(prefix: str) -> None:
    """Read a checkpoint whole and compare every checksum.

    :raises CheckpointError: naming the file or tensor that is missing, cut off or changed.
    """
    with BundleReader(prefix) as reader:
        for key in reader.entries:
            for _ in reader.chunks(key):
                pass


def latest_complete(folder: Path) -> LatestCheckpoint:
    """Return the newest checkpoint below ``folder`` that passes :func:`verify`.

    The one that TensorFlow's state file names comes first, the others by step number (``name-<step>``), then by time.
    Data without an index is a save that never finished; TensorFlow writes the index last.

    :raises CheckpointError: if the folder exists but cannot be read.
    """
    skipped = []
    for candidate in _candidates(folder):
        if isinstance(candidate, SkippedCheckpoint):
            skipped.append(candidate)
            continue
        try:
            verify(candidate)
        except CheckpointError as error:
            skipped.append(SkippedCheckpoint(candidate, str(error)))
        else:
            return LatestCheckpoint(candidate, tuple(skipped))
    return LatestCheckpoint(None, tuple(skipped))


def _candidates(folder: Path) -> Iterator[str | SkippedCheckpoint]:
    try:
        indices = [path for path in folder.iterdir() if path.suffix == ".index" and not path.name.startswith(".")]
        ranked = sorted(indices, key=_age, reverse=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(
            f"checkpoint folder {folder} cannot be read",
            error.strerror or str(error),
            "Check its path and permissions.",
        ) from error
    first = named_by_state(folder)
    if first is not None:
        yield first
    for path in ranked:
        prefix = str(path.with_suffix(""))
        if prefix != first:
            yield prefix


def _age(index: Path) -> tuple[int, float]:
    return prefix_step(str(index.with_suffix(""))) or 0, index.stat().st_mtime


def prefix_step(prefix: str) -> int | None:
    """Return N of a prefix like ``ckpt-N``."""
    match = _STEP.search(prefix)
    return int(match.group(1)) if match else None


def named_by_state(folder: Path) -> str | SkippedCheckpoint | None:
    """Return the prefix that TensorFlow's state file names, None where there is no such file."""
    path = folder / STATE_FILE
    try:
        text = path.read_text(encoding="utf-8")
        state = text_format.Parse(text, message_class(__package__, "bundle.fds", "tensorflow.CheckpointState")())
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        return SkippedCheckpoint(str(path), f"the state file cannot be read: {error}")
    named = Path(state.model_checkpoint_path)
    if not named.name:
        return SkippedCheckpoint(str(path), "the state file names no checkpoint")
    # The name alone counts: an absolute path is wrong once the folder was moved or copied.
    return str(folder / named.name)


def write_state(prefix: str) -> None:
    """Write the state file that makes ``tf.train.latest_checkpoint`` find ``prefix``."""
    path = Path(prefix)
    state = message_class(__package__, "bundle.fds", "tensorflow.CheckpointState")(
        model_checkpoint_path=path.name, all_model_checkpoint_paths=[path.name]
    )
    temporary = path.with_name(f".{STATE_FILE}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text_format.MessageToString(state))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path.with_name(STATE_FILE))
    finally:  # a full disk leaves a part
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
